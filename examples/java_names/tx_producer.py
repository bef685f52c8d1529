"""TxProducer: a TransactionListener that commits, rolls back, and does not know yet.

NAMESRV_ADDR=127.0.0.1:9876 python examples/java_names/tx_producer.py
"""

import threading
from typing import Any

from skylark.compat import (
    LocalTransactionState,
    Message,
    MessageExt,
    TransactionListener,
    TransactionMQProducer,
)

STATES = [
    LocalTransactionState.COMMIT_MESSAGE,
    LocalTransactionState.ROLLBACK_MESSAGE,
    LocalTransactionState.UNKNOW,
]
checked = threading.Event()


class MyTransactionListener(TransactionListener):
    def executeLocalTransaction(self, msg: Message, arg: Any) -> LocalTransactionState:
        print(f"executeLocalTransaction {msg.getBody().decode()} {arg}")
        return STATES[arg]

    def checkLocalTransaction(self, msg: MessageExt) -> LocalTransactionState:
        print(f"checkLocalTransaction {msg.getBody().decode()}")
        checked.set()
        return LocalTransactionState.COMMIT_MESSAGE


if __name__ == "__main__":
    producer = TransactionMQProducer("tx_producer_grp_08")
    producer.setTransactionListener(MyTransactionListener())
    producer.start()
    for number in range(3):
        message = Message("tp_demo_tx", f"hello skylark - tx - {number}".encode())
        result = producer.sendMessageInTransaction(message, number)
        print(result.getSendStatus(), result.getLocalTransactionState())
    checked.wait(90)
    producer.shutdown()
