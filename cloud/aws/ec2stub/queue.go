// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"context"
	"crypto/md5" // SQS's checksum, which the SDK compares
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"
)

// queue is a standard SQS queue, as a consumer sees it: a message that was received and not deleted
// comes again after its visibility timeout.
type queue struct {
	mu       sync.Mutex
	messages []*message
	made     int
	arrived  chan struct{} // closed when a message arrives
	hidden   time.Duration // maximum visibility timeout; 0: as requested
}

type message struct {
	id, body string
	sent     time.Time
	until    time.Time // hidden until then
	received int
}

func newQueue() *queue { return &queue{arrived: make(chan struct{})} }

// queueOf is the path of the only queue's URL.
const queueOf = "/123456789012/drover"

// QueueURL returns the URL of the cloud's queue.
func (c *Cloud) QueueURL() string { return c.URL + queueOf }

// Send puts a message into the queue, sent that long ago.
func (c *Cloud) Send(body string, ago time.Duration) {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	c.queue.made++
	c.queue.messages = append(c.queue.messages, &message{id: fmt.Sprintf("message-%d", c.queue.made), body: body, sent: time.Now().Add(-ago)})
	close(c.queue.arrived)
	c.queue.arrived = make(chan struct{})
}

// SetHidden limits the visibility timeout, so that tests need not wait for it.
func (c *Cloud) SetHidden(d time.Duration) {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	c.queue.hidden = d
}

// Messages returns the bodies of all messages in the queue, including hidden ones.
func (c *Cloud) Messages() (bodies []string) {
	c.queue.mu.Lock()
	defer c.queue.mu.Unlock()
	for _, m := range c.queue.messages {
		bodies = append(bodies, m.body)
	}
	return bodies
}

// Warn sends the notice that a spot instance will be taken back, as EventBridge does. Interrupt
// takes it back.
func (c *Cloud) Warn(id string) {
	c.Send(Event("aws.ec2", "EC2 Spot Instance Interruption Warning", map[string]any{"instance-id": id, "instance-action": "terminate"}), 0)
}

// Event returns an event in EventBridge's format, with the current time.
func Event(source, kind string, detail map[string]any) string {
	text, _ := json.Marshal(map[string]any{ // plain values: never fails
		"version": "0", "id": "12345678-1234-1234-1234-123456789012", "detail-type": kind, "source": source, "account": "123456789012",
		"time": time.Now().UTC().Format(time.RFC3339), "region": "us-east-1", "resources": []string{}, "detail": detail,
	})
	return string(text)
}

// serveQueue answers for SQS. It does not hold the Cloud's lock while it waits.
func (c *Cloud) serveQueue(ctx context.Context, in call) (any, *failure) {
	var asked struct {
		QueueUrl                                                string //nolint:revive,staticcheck // SQS's spelling
		MaxNumberOfMessages, WaitTimeSeconds, VisibilityTimeout int
		MessageBody                                             string
		Entries                                                 []struct{ Id, ReceiptHandle string } //nolint:revive,staticcheck // the same
	}
	if err := json.Unmarshal(in.json, &asked); err != nil {
		return nil, refuse("SerializationException", "the request is not JSON")
	}
	if !strings.HasSuffix(asked.QueueUrl, queueOf) {
		return nil, refuse("QueueDoesNotExist", "The specified queue does not exist.")
	}
	switch in.op {
	case "SendMessage":
		c.Send(asked.MessageBody, 0)
		return map[string]any{"MessageId": "sent", "MD5OfMessageBody": checksum(asked.MessageBody)}, nil
	case "ReceiveMessage":
		if asked.MaxNumberOfMessages > 10 || asked.WaitTimeSeconds > 20 {
			return nil, refuse("InvalidParameterValue", "at most 10 messages, and 20 seconds")
		}
		ctx, cancel := context.WithTimeout(ctx, time.Duration(asked.WaitTimeSeconds)*time.Second)
		defer cancel()
		return map[string]any{"Messages": c.queue.receive(ctx, max(asked.MaxNumberOfMessages, 1),
			time.Duration(asked.VisibilityTimeout)*time.Second)}, nil
	case "DeleteMessageBatch":
		done := []map[string]string{}
		for _, entry := range asked.Entries {
			c.queue.delete(entry.ReceiptHandle)
			done = append(done, map[string]string{"Id": entry.Id})
		}
		return map[string]any{"Successful": done, "Failed": []any{}}, nil
	}
	return nil, refuse("InvalidAction", "The action %s is not valid for this endpoint.", in.op)
}

// receive waits until a message is visible or ctx ends.
func (q *queue) receive(ctx context.Context, most int, hide time.Duration) []map[string]any {
	for {
		found, next, arrived := q.take(most, hide)
		if len(found) > 0 {
			return found
		}
		timer := time.NewTimer(next)
		select {
		case <-arrived:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// take hides and returns messages, or returns when to look again.
func (q *queue) take(most int, hide time.Duration) (found []map[string]any, next time.Duration, arrived chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	if q.hidden > 0 {
		hide = min(hide, q.hidden)
	}
	next = time.Minute
	for _, m := range q.messages {
		if left := m.until.Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		if len(found) == most {
			break
		}
		m.received++
		m.until = now.Add(hide)
		found = append(found, map[string]any{
			"MessageId": m.id, "ReceiptHandle": fmt.Sprintf("%s/%d", m.id, m.received), "Body": m.body, "MD5OfBody": checksum(m.body),
			"Attributes": map[string]string{"SentTimestamp": fmt.Sprint(m.sent.UnixMilli())},
		})
	}
	return found, next, q.arrived
}

func checksum(body string) string {
	sum := md5.Sum([]byte(body))
	return hex.EncodeToString(sum[:])
}

// delete removes a message by any of its receipts. A missing message is not an error.
func (q *queue) delete(receipt string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	id, _, _ := strings.Cut(receipt, "/")
	for i, m := range q.messages {
		if m.id == id {
			q.messages = append(q.messages[:i], q.messages[i+1:]...)
			return
		}
	}
}

// sqsHeader sets an error's older code, which SQS sends in a header besides the JSON.
func sqsHeader(header http.Header, in call, fail *failure) {
	if in.service == "sqs" && fail != nil {
		name := map[string]string{"QueueDoesNotExist": "AWS.SimpleQueueService.NonExistentQueue"}[fail.code]
		if name == "" {
			name = fail.code
		}
		header.Set("X-Amzn-Query-Error", name+";Sender")
	}
}
