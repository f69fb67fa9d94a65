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

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1alpha1"
	"github.com/drover-io/drover/cloud"
)

const (
	receiveMessage = "ReceiveMessage"
	deleteMessages = "DeleteMessageBatch"
	// messagesAtOnce is what SQS hands out, and takes back, by one call at most.
	messagesAtOnce = 10
)

// listener is the driver of an account that names a queue: EventBridge puts there what EC2 and AWS
// Health announce.
//
// The queue's URL is a parameter of the calls. They go to the region's endpoint of SQS, or the
// account's own, wherever that URL leads.
type listener struct {
	*driver
	queue *infrav1.AWSInterruptionQueue
	sqs   *sqs.Client
}

var _ cloud.Herald = (*listener)(nil)

// Hear is one long poll.
func (l *listener) Hear(ctx context.Context) ([]cloud.News, error) {
	answer, err := l.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
		QueueUrl:                    &l.queue.URL,
		MaxNumberOfMessages:         messagesAtOnce,
		WaitTimeSeconds:             pollSeconds(ctx),
		VisibilityTimeout:           int32(hiddenFor / time.Second),
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{types.MessageSystemAttributeNameSentTimestamp},
	})
	if err != nil {
		return nil, l.secrets.typed(receiveMessage, err)
	}
	var news []cloud.News
	for i := range answer.Messages {
		news = append(news, l.read(&answer.Messages[i]))
	}
	return news, nil
}

// pollSeconds is how long a poll may last: SQS's longest, or what leaves the answer a third of the
// call's time.
func pollSeconds(ctx context.Context) int32 {
	poll := longPoll
	if deadline, ok := ctx.Deadline(); ok {
		poll = min(poll, time.Until(deadline)*2/3)
	}
	return int32(poll / time.Second)
}

// Dismiss removes messages. Those that can't be removed come again, and are dismissed again.
func (l *listener) Dismiss(ctx context.Context, news []cloud.News) error {
	in := &sqs.DeleteMessageBatchInput{QueueUrl: &l.queue.URL}
	for i := range news {
		in.Entries = append(in.Entries, types.DeleteMessageBatchRequestEntry{Id: aws.String(strconv.Itoa(i)), ReceiptHandle: &news[i].Receipt})
	}
	_, err := l.sqs.DeleteMessageBatch(ctx, in)
	return l.secrets.typed(deleteMessages, err)
}

// announcement is an event of EventBridge's, as far as it is read: EC2's user guide, "Spot Instance
// interruption notices", "EC2 instance rebalance recommendations", "EventBridge events for EC2
// state changes"; AWS Health's user guide, "EventBridge event schema".
type announcement struct {
	Source string    `json:"source"`
	Kind   string    `json:"detail-type"`
	Time   time.Time `json:"time"`
	Detail struct {
		InstanceID string `json:"instance-id"`
		Action     string `json:"instance-action"`
		State      string `json:"state"`
	} `json:"detail"`
}

// read says what a message means. What means nothing, because it is no event or is about no
// instance, is news of nothing.
func (l *listener) read(m *types.Message) cloud.News {
	news := cloud.News{Receipt: aws.ToString(m.ReceiptHandle)}
	if ms, err := strconv.ParseInt(m.Attributes[string(types.MessageSystemAttributeNameSentTimestamp)], 10, 64); err == nil {
		news.At = time.UnixMilli(ms)
	}
	var a announcement
	if json.Unmarshal([]byte(aws.ToString(m.Body)), &a) != nil {
		return news
	}
	at := a.Time.UTC().Format(time.RFC3339)
	switch a.Source + "/" + a.Kind {
	case "aws.ec2/EC2 Spot Instance Interruption Warning":
		news.InstanceID, news.Ending, news.Imminent = a.Detail.InstanceID, true, true
		news.Notice = "AWS takes the spot instance back two minutes from " + at + " (" + cloud.Clip(a.Detail.Action, 32) + ")"
	case "aws.ec2/EC2 Instance Rebalance Recommendation":
		news.InstanceID, news.Ending = a.Detail.InstanceID, l.queue.Rebalance == "Replace"
		news.Notice = "AWS recommends since " + at + " to leave the spot instance: it is likely to be taken back"
	case "aws.ec2/EC2 Instance State-change Notification":
		if s := a.Detail.State; s != "pending" && s != "running" { // those are awaited, and looked for
			news.InstanceID, news.Changed = a.Detail.InstanceID, true
		}
	case "aws.health/AWS Health Event":
		l.troubled.Forget("") // EC2 has the details, and the next listing asks for them
	}
	return news
}
