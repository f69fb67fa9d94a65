// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"encoding/json"
	"strconv"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

const (
	receiveMessage = "ReceiveMessage"
	deleteMessages = "DeleteMessageBatch"
	// maxMessages is the maximum number of messages in one SQS call, for both calls.
	maxMessages = 10
)

// queueDriver is the driver of an account that names a queue. EventBridge sends the events of EC2
// and AWS Health to the queue.
//
// The queue's URL is only a parameter of the calls. They go to the region's SQS endpoint, or to the
// account's own endpoint, whatever host the URL names.
type queueDriver struct {
	*driver
	queue infrav1.AWSInterruptionQueue
	sqs   *sqs.Client
}

var _ cloud.EventSource = (*queueDriver)(nil)

// Receive makes one long poll.
func (l *queueDriver) Receive(ctx context.Context) ([]cloud.Event, error) {
	answer, err := l.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:                    &l.queue.URL,
		MaxNumberOfMessages:         maxMessages,
		WaitTimeSeconds:             pollSeconds(ctx),
		VisibilityTimeout:           int32(hiddenFor / time.Second),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameSentTimestamp},
	})
	if err != nil {
		return nil, l.secrets.typed(receiveMessage, err)
	}
	var events []cloud.Event
	for i := range answer.Messages[:min(len(answer.Messages), maxMessages)] { // the others come again
		events = append(events, l.toEvent(&answer.Messages[i]))
	}
	return events, nil
}

// pollSeconds returns how long a poll may last, in seconds: SQS's longest, or two thirds of the
// time until ctx's deadline, which leaves a third for the answer.
func pollSeconds(ctx context.Context) int32 {
	poll := longPoll
	if deadline, ok := ctx.Deadline(); ok {
		poll = min(poll, time.Until(deadline)*2/3)
	}
	return int32(poll / time.Second)
}

// Ack deletes messages. If it can't delete one, the message comes again and is acknowledged again.
func (l *queueDriver) Ack(ctx context.Context, events []cloud.Event) error {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &l.queue.URL}
	for i := range events {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &events[i].Receipt})
	}
	_, err := l.sqs.DeleteMessageBatch(ctx, in)
	return l.secrets.typed(deleteMessages, err)
}

// queueEvent holds the fields of an EventBridge event that the driver reads: EC2's user guide,
// "Spot Instance interruption notices", "EC2 instance rebalance recommendations", "EventBridge
// events for EC2 state changes"; AWS Health's user guide, "EventBridge event schema".
type queueEvent struct {
	Source string    `json:"source"`
	Kind   string    `json:"detail-type"`
	Time   time.Time `json:"time"`
	Detail struct {
		InstanceID string `json:"instance-id"`
		Action     string `json:"instance-action"`
		State      string `json:"state"`
	} `json:"detail"`
}

// toEvent interprets a message. A message that is not an event, or not about an instance, returns
// an Event without an instance.
func (l *queueDriver) toEvent(m *types.Message) cloud.Event {
	event := cloud.Event{Receipt: aws.ToString(m.ReceiptHandle)}
	if ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64); err == nil {
		event.At = time.UnixMilli(ms)
	}
	var body queueEvent
	if json.Unmarshal([]byte(aws.ToString(m.Body)), &body) != nil {
		return event
	}
	at := body.Time.UTC().Format(time.RFC3339)
	switch body.Source + "/" + body.Kind {
	case "aws.ec2/EC2 Spot Instance Interruption Warning":
		event.InstanceID, event.Reclaim = body.Detail.InstanceID, cloud.ReclaimCertain
		event.Notice = "AWS will interrupt the spot instance two minutes from " + at + " (" + cloud.Clip(body.Detail.Action, 32) + ")"
	case "aws.ec2/EC2 Instance Rebalance Recommendation":
		event.InstanceID = body.Detail.InstanceID
		if l.queue.Rebalance == infrav1.AWSRebalanceReplace {
			event.Reclaim = cloud.ReclaimAdvised
		}
		event.Notice = "AWS recommends since " + at + " to replace the spot instance: it has an elevated risk of interruption"
	case "aws.ec2/EC2 Instance State-change Notification":
		if s := body.Detail.State; s != "pending" && s != "running" { // the engine already polls for those
			event.InstanceID, event.Changed = body.Detail.InstanceID, true
		}
	case "aws.health/AWS Health Event":
		l.notices.Forget("") // the next listing asks EC2 for the details
	}
	return event
}
