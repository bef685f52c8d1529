// The official Go client behind the same line protocol as java/Peer.java:
//
//	produce NAMESRV TOPIC GROUP COUNT             sent N failed M, four at a time
//	select  NAMESRV TOPIC GROUP COUNT             sent N failed M; bodies KEY:NUMBER, 16 keys, one queue for each
//	consume NAMESRV TOPIC GROUP EXPECTED WAIT_S   received UNIQUE duplicates D
//	orderly NAMESRV TOPIC GROUP EXPECTED WAIT_S   received UNIQUE inversions I
//
// Up to this release the Go client reads broker ids in routes by hand, and only without quotes: no other official client
// is as strict.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	senders = 4
	keys    = 16
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 5 {
		return fmt.Errorf("usage: COMMAND NAMESRV TOPIC GROUP COUNT [WAIT_S]")
	}
	rlog.SetLogLevel("error")
	servers := primitive.NewPassthroughResolver(strings.Split(args[1], ";"))
	topic, group := args[2], args[3]
	count, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	switch args[0] {
	case "produce":
		return produce(servers, topic, group, count)
	case "select":
		return selectQueues(servers, topic, group, count)
	case "consume", "orderly":
		waitS, err := strconv.Atoi(args[5])
		if err != nil {
			return err
		}
		return consume(servers, topic, group, count, time.Duration(waitS)*time.Second, args[0] == "orderly")
	}
	return fmt.Errorf("unknown command %s", args[0])
}

type tally struct {
	sent, failed int64
}

func (t *tally) send(one rocketmq.Producer, message *primitive.Message) {
	result, err := one.SendSync(context.Background(), message)
	if err != nil || result.Status != primitive.SendOK {
		fmt.Printf("failed %s %v %v\n", message.Body, result, err)
		atomic.AddInt64(&t.failed, 1)
		return
	}
	atomic.AddInt64(&t.sent, 1)
}

func start(options ...producer.Option) (rocketmq.Producer, error) {
	one, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	return one, one.Start()
}

func produce(servers primitive.NsResolver, topic, group string, count int) error {
	one, err := start(producer.WithNsResolver(servers), producer.WithGroupName(group))
	if err != nil {
		return err
	}
	var counts tally
	var next int64 = -1
	var all sync.WaitGroup
	for sender := 0; sender < senders; sender++ {
		all.Add(1)
		go func() {
			defer all.Done()
			for number := atomic.AddInt64(&next, 1); number < int64(count); number = atomic.AddInt64(&next, 1) {
				counts.send(one, primitive.NewMessage(topic, []byte("message-"+strconv.FormatInt(number, 10))))
			}
		}()
	}
	all.Wait()
	fmt.Printf("sent %d failed %d\n", counts.sent, counts.failed)
	return one.Shutdown()
}

func selectQueues(servers primitive.NsResolver, topic, group string, count int) error {
	one, err := start(producer.WithNsResolver(servers), producer.WithGroupName(group),
		producer.WithQueueSelector(producer.NewHashQueueSelector()))
	if err != nil {
		return err
	}
	var counts tally
	for number := 0; number < count; number++ {
		key := strconv.Itoa(number % keys)
		message := primitive.NewMessage(topic, []byte(key+":"+strconv.Itoa(number/keys)))
		counts.send(one, message.WithShardingKey(key))
	}
	fmt.Printf("sent %d failed %d\n", counts.sent, counts.failed)
	return one.Shutdown()
}

func consume(servers primitive.NsResolver, topic, group string, expected int, wait time.Duration, orderly bool) error {
	one, err := rocketmq.NewPushConsumer(
		consumer.WithNsResolver(servers),
		consumer.WithGroupName(group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
		consumer.WithConsumerOrder(orderly),
	)
	if err != nil {
		return err
	}
	var lock sync.Mutex
	seen := map[string]bool{}
	next := map[string]int{}
	duplicates, inversions := 0, 0
	done := make(chan struct{})
	handle := func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		lock.Lock()
		defer lock.Unlock()
		for _, message := range messages {
			body := string(message.Body)
			if seen[body] {
				duplicates++
				continue
			}
			seen[body] = true
			if key, text, found := strings.Cut(body, ":"); found {
				number, err := strconv.Atoi(text)
				if err != nil || number != next[key] {
					inversions++
				}
				next[key] = number + 1
			}
			if len(seen) == expected {
				close(done)
			}
		}
		return consumer.ConsumeSuccess, nil
	}
	if err := one.Subscribe(topic, consumer.MessageSelector{}, handle); err != nil {
		return err
	}
	if err := one.Start(); err != nil {
		return err
	}
	fmt.Println("ready")
	select {
	case <-done:
	case <-time.After(wait):
	}
	lock.Lock()
	if orderly {
		fmt.Printf("received %d inversions %d\n", len(seen), inversions)
	} else {
		fmt.Printf("received %d duplicates %d\n", len(seen), duplicates)
	}
	lock.Unlock()
	return one.Shutdown()
}
