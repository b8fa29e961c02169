"""Every operation that Quell needs, by Microsoft's SDK for Python, on a stand-in that the test started."""

import datetime
import faulthandler
import os
import time

from azure.servicebus import (
    ServiceBusClient,
    ServiceBusMessage,
    ServiceBusSubQueue,
)
from azure.servicebus.exceptions import (
    MessageLockLostError,
    MessageNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

CONNECTION = os.environ["SERVICEBUS"]
WAIT = 10


def client(connection=CONNECTION):
    return ServiceBusClient.from_connection_string(connection, retry_total=0)


def text(message):
    return b"".join(message.body).decode()


def refused(kinds, act):
    try:
        act()
    except kinds as error:
        return error
    raise AssertionError(f"not refused with {kinds}")


def one(receiver):
    messages = receiver.receive_messages(max_message_count=1, max_wait_time=WAIT)
    assert len(messages) == 1, messages
    return messages[0]


def none(receiver):
    messages = receiver.receive_messages(max_message_count=1, max_wait_time=0.5)
    assert messages == [], [text(message) for message in messages]


def after(seconds):
    return datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=seconds)


def sends_and_completes(bus):
    with bus.get_queue_sender("plain") as sender, bus.get_queue_receiver("plain") as receiver:
        sent = ServiceBusMessage(
            "hello", message_id="m1", subject="s", application_properties={"n": 7, "t": "x"}
        )
        sender.send_messages(sent)
        got = one(receiver)
        assert (text(got), got.message_id, got.subject) == ("hello", "m1", "s")
        assert got.application_properties == {b"n": 7, b"t": b"x"}, got.application_properties
        assert got.delivery_count == 0 and got.sequence_number == 1
        assert got.enqueued_time_utc <= got.locked_until_utc
        receiver.complete_message(got)
        none(receiver)


def sends_batches(bus):
    with bus.get_queue_sender("plain") as sender, bus.get_queue_receiver("plain") as receiver:
        batch = sender.create_message_batch()
        for number in range(5):
            batch.add_message(ServiceBusMessage(f"b{number}"))
        sender.send_messages(batch)
        sender.send_messages([ServiceBusMessage("b5")])
        found = set()
        while len(found) < 6:
            messages = receiver.receive_messages(max_message_count=4, max_wait_time=WAIT)
            assert 1 <= len(messages) <= 4, messages
            for message in messages:
                found.add(text(message))
                receiver.complete_message(message)
        assert found == {f"b{number}" for number in range(6)}
        large = "x" * 200_000
        sender.send_messages(ServiceBusMessage(large))
        got = one(receiver)
        assert text(got) == large
        receiver.complete_message(got)


def schedules_and_cancels(bus):
    with bus.get_queue_sender("plain") as sender, bus.get_queue_receiver("plain") as receiver:
        due = after(1.5)
        sender.schedule_messages(ServiceBusMessage("managed"), due)
        annotated = ServiceBusMessage("annotated", scheduled_enqueue_time_utc=due)
        sender.send_messages(annotated)
        numbers = sender.schedule_messages(
            [ServiceBusMessage("never"), ServiceBusMessage("never")], after(1.5)
        )
        assert len(set(numbers)) == 2, numbers
        peeked = receiver.peek_messages(max_message_count=10)
        assert [text(it) for it in peeked] == ["managed", "annotated", "never", "never"], peeked
        assert [it.state.name for it in peeked] == ["SCHEDULED"] * 4
        sender.cancel_scheduled_messages(numbers)
        refused(MessageNotFoundError, lambda: sender.cancel_scheduled_messages(numbers[0]))
        found = []
        while len(found) < 2:
            got = one(receiver)
            assert after(0.05) >= due, "it came early"
            found.append(text(got))
            receiver.complete_message(got)
        assert sorted(found) == ["annotated", "managed"]
        none(receiver)


def locks_expire_and_are_renewed(bus):
    sender, receiver = bus.get_queue_sender("short"), bus.get_queue_receiver("short")
    rival = bus.get_queue_receiver("short")
    with sender, receiver, rival:
        sender.send_messages(ServiceBusMessage("locked"))
        got = one(receiver)
        first_end = got.locked_until_utc
        while after(0) < first_end + datetime.timedelta(seconds=0.5):
            until = got.locked_until_utc
            receiver.renew_message_lock(got)
            assert got.locked_until_utc > until
            none(rival)
        again = one(rival)
        assert (text(again), again.delivery_count) == ("locked", 1)
        refused(MessageLockLostError, lambda: receiver.renew_message_lock(got))
        refused(MessageLockLostError, lambda: receiver.complete_message(got))
        rival.complete_message(again)


def abandons_and_dead_letters(bus):
    dead = bus.get_queue_receiver("strict", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with bus.get_queue_sender("strict") as sender, bus.get_queue_receiver("strict") as receiver:
        sender.send_messages(ServiceBusMessage("worn", application_properties={"kept": "yes"}))
        for count in range(2):
            got = one(receiver)
            assert got.delivery_count == count, got.delivery_count
            receiver.abandon_message(got)
        none(receiver)
        sender.send_messages(ServiceBusMessage("refused"))
        receiver.dead_letter_message(one(receiver), reason="poison", error_description="why")
        with dead:
            assert [text(it) for it in dead.peek_messages(max_message_count=9)] == ["worn", "refused"]
            worn, poison = one(dead), one(dead)
            assert worn.dead_letter_reason == "MaxDeliveryCountExceeded"
            assert worn.application_properties[b"kept"] == b"yes"
            assert text(poison) == "refused"
            assert poison.dead_letter_reason == "poison"
            assert poison.dead_letter_error_description == "why"
            dead.complete_message(worn)
            dead.complete_message(poison)
            none(dead)


def settles_by_management(bus):
    """As the SDK does by itself where the link of a message is gone."""
    dead = bus.get_queue_receiver("plain", sub_queue=ServiceBusSubQueue.DEAD_LETTER)
    with bus.get_queue_sender("plain") as sender, bus.get_queue_receiver("plain") as receiver, dead:

        def settle(status, **details):
            got = one(receiver)
            receiver._settle_message_via_mgmt_link(status, [got.lock_token], details)
            return got

        sender.send_messages(ServiceBusMessage("first"))
        got = settle("abandoned")
        assert settle("completed").delivery_count == got.delivery_count + 1
        none(receiver)
        late = lambda: receiver._settle_message_via_mgmt_link("completed", [got.lock_token])
        refused(MessageLockLostError, late)
        sender.send_messages(ServiceBusMessage("second"))
        settle("suspended", **{"deadletter-reason": "poison"})
        poison = one(dead)
        assert (text(poison), poison.dead_letter_reason) == ("second", "poison")
        dead._settle_message_via_mgmt_link("completed", [poison.lock_token])
        none(dead)


def consumers_compete(bus):
    with bus.get_queue_sender("plain") as sender:
        sender.send_messages([ServiceBusMessage(str(number)) for number in range(20)])
    with bus.get_queue_receiver("plain") as first, bus.get_queue_receiver("plain") as second:
        found = []
        while len(found) < 20:
            for receiver in (first, second):
                messages = receiver.receive_messages(max_message_count=3, max_wait_time=WAIT)
                assert 1 <= len(messages) <= 3
                found += [text(message) for message in messages]
                for message in messages:
                    receiver.complete_message(message)
                if len(found) == 20:
                    break
        assert sorted(found, key=int) == [str(number) for number in range(20)]


def duplicates_and_old_messages_go(bus):
    with bus.get_queue_sender("unique") as sender, bus.get_queue_receiver("unique") as receiver:
        for body in ("kept", "dropped"):
            sender.send_messages(ServiceBusMessage(body, message_id="same"))
        sender.schedule_messages(ServiceBusMessage("dropped", message_id="same"), after(0.1))
        got = one(receiver)
        assert text(got) == "kept"
        receiver.complete_message(got)
        none(receiver)
    with bus.get_queue_sender("brief") as sender, bus.get_queue_receiver("brief") as receiver:
        sender.send_messages(ServiceBusMessage("old"))
        deadline = time.monotonic() + WAIT
        while receiver.peek_messages(sequence_number=1):
            assert time.monotonic() < deadline, "it never expired"
        none(receiver)


def faults_are_what_the_sdk_expects(bus):
    with bus.get_queue_sender("busy") as sender:
        refused(ServiceBusServerBusyError, lambda: sender.send_messages(ServiceBusMessage("x")))
    with bus.get_queue_sender("lossy") as sender:
        refused(ServiceBusError, lambda: sender.send_messages(ServiceBusMessage("stored")))
    with bus.get_queue_receiver("lossy") as receiver:
        got = one(receiver)
        assert text(got) == "stored"
        receiver.complete_message(got)
    with bus.get_queue_sender("twice") as sender, bus.get_queue_receiver("twice") as receiver:
        sender.send_messages(ServiceBusMessage("again"))
        for count in range(2):
            got = one(receiver)
            assert (text(got), got.delivery_count) == ("again", count)
            receiver.complete_message(got)
        none(receiver)
    denied = (ServiceBusAuthenticationError, ServiceBusAuthorizationError)
    with client(CONNECTION.replace("SharedAccessKey=", "SharedAccessKey=wrong")) as stranger:
        sender = stranger.get_queue_sender("plain")
        refused(denied, lambda: sender.send_messages(ServiceBusMessage("x")))
    sender = bus.get_queue_sender("missing")
    refused(ServiceBusError, lambda: sender.send_messages(ServiceBusMessage("x")))


faulthandler.dump_traceback_later(180, exit=True)
with client() as bus:
    for act in (
        sends_and_completes,
        sends_batches,
        schedules_and_cancels,
        locks_expire_and_are_renewed,
        abandons_and_dead_letters,
        settles_by_management,
        consumers_compete,
        duplicates_and_old_messages_go,
        faults_are_what_the_sdk_expects,
    ):
        began = time.monotonic()
        act(bus)
        print(f"ok {act.__name__} {time.monotonic() - began:.1f} s", flush=True)
print("all ok", flush=True)
