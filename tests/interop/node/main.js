// The Node client `ali-ons` behind the same line protocol as java/Peer.java:
//
//   produce NAMESRV TOPIC GROUP COUNT              sent N failed M, 16 at a time
//   consume NAMESRV TOPIC GROUP EXPECTED WAIT_S    received UNIQUE duplicates D inversions I, queue by queue
'use strict';

const { Consumer, Message, Producer } = require('ali-ons');

const AT_ONCE = 16;
const quiet = { info() {}, debug() {}, warn() {}, error(...words) { console.error(...words); } };

// The address comes from the command line: the client must not ask for it over HTTP, but wants to be able to.
function options(nameSrv) {
  return { nameSrv, httpclient: { request() { throw new Error('no HTTP here'); } }, logger: quiet };
}

async function produce(servers, topic, group, count) {
  const producer = new Producer({ ...options(servers), producerGroup: group });
  await producer.ready();
  let next = 0;
  let sent = 0;
  let failed = 0;
  await Promise.all(Array.from({ length: AT_ONCE }, async () => {
    while (next < count) {
      const message = new Message(topic, 'TagA', `message-${next++}`);
      try {
        const result = await producer.send(message);
        if (result.sendStatus !== 'SEND_OK') throw new Error(result.sendStatus);
        sent++;
      } catch (error) {
        console.log(`failed ${error.message}`);
        failed++;
      }
    }
  }));
  console.log(`sent ${sent} failed ${failed}`);
}

async function consume(servers, topic, group, expected, waitS) {
  const consumer = new Consumer({ ...options(servers), consumerGroup: group, consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET' });
  consumer.on('error', error => console.log(`failed ${error.message}`));
  const seen = new Set();
  const last = new Map();
  let duplicates = 0;
  let inversions = 0;
  await new Promise(resolve => {
    setTimeout(resolve, waitS * 1000);
    consumer.subscribe(topic, '*', async message => {
      const body = message.body.toString();
      if (seen.has(body)) duplicates++;
      seen.add(body);
      const before = last.get(message.queueId);
      if (before !== undefined && message.queueOffset <= before) inversions++;
      last.set(message.queueId, message.queueOffset);
      if (seen.size === expected) resolve();
    });
  });
  console.log(`received ${seen.size} duplicates ${duplicates} inversions ${inversions}`);
}

const [ command, servers, topic, group, count, waitS ] = process.argv.slice(2);
const run = { produce, consume }[command];
run(servers, topic, group, Number(count), Number(waitS)).then(() => process.exit(0), error => {
  console.error(error);
  process.exit(1);
});
