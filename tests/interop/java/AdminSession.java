import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Apache's mqadmin, many commands in one process: each line of standard input is one command, its words separated by
 * tabs; what it prints is followed by a line that says so. A process for each command would spend its time starting.
 */
public final class AdminSession {
    private AdminSession() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Field commands = MQAdminStartup.class.getDeclaredField("subCommandList");
        commands.setAccessible(true);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            try {
                // Some commands keep a producer that can be started once: each run gets commands of its own.
                ((List<?>) commands.get(null)).clear();
                MQAdminStartup.main(line.split("\t", -1));
            } catch (Throwable error) {
                error.printStackTrace();
            }
            System.err.flush();
            System.out.printf("%n=== end of command ===%n");
            System.out.flush();
        }
        System.exit(0);
    }
}
