// The official Go client behind the same line protocol as java/Peer.java:
//
//	produce NAMESRV TOPIC GROUP COUNT    sent N failed M
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

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	if len(os.Args) != 6 || os.Args[1] != "produce" {
		fmt.Fprintln(os.Stderr, "usage: produce NAMESRV TOPIC GROUP COUNT")
		os.Exit(2)
	}
	if err := produce(os.Args[2], os.Args[3], os.Args[4], os.Args[5]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func produce(nameServers, topic, group, countText string) error {
	count, err := strconv.Atoi(countText)
	if err != nil {
		return err
	}
	rlog.SetLogLevel("error")
	one, err := rocketmq.NewProducer(
		producer.WithNsResolver(primitive.NewPassthroughResolver(strings.Split(nameServers, ";"))),
		producer.WithGroupName(group),
	)
	if err != nil {
		return err
	}
	if err := one.Start(); err != nil {
		return err
	}
	sent, failed := 0, 0
	for number := 0; number < count; number++ {
		body := []byte("message-" + strconv.Itoa(number))
		result, err := one.SendSync(context.Background(), primitive.NewMessage(topic, body))
		if err != nil || result.Status != primitive.SendOK {
			fmt.Printf("failed %s %v %v\n", body, result, err)
			failed++
			continue
		}
		sent++
	}
	fmt.Printf("sent %d failed %d\n", sent, failed)
	return one.Shutdown()
}
