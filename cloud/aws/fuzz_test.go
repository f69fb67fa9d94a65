// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"testing"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// FuzzEvent: whatever a queue holds, an event can be shown, and can be acknowledged.
func FuzzEvent(f *testing.F) {
	f.Add(`{"source":"aws.ec2","detail-type":"EC2 Spot Instance Interruption Warning","time":"2026-01-01T00:00:00Z","detail":{"instance-id":"i-1","instance-action":"terminate"}}`, "1700000000000")
	f.Add(`{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","detail":{"state":"stopped"}}`, "-1")
	f.Add(`{"source":"aws.health","detail-type":"AWS Health Event"}`, "x")
	f.Add(`{"source":["aws.ec2"],"detail":null}`, "")
	q := &queueDriver{driver: &driver{}, queue: infrav1.AWSInterruptionQueue{Rebalance: "Replace"}}
	f.Fuzz(func(t *testing.T, body, sent string) {
		e := q.toEvent(&types.Message{Body: aws.String(body), ReceiptHandle: aws.String("receipt"),
			Attributes: map[string]string{"SentTimestamp": sent}})
		if len(e.Notice) > 2048 || !utf8.ValidString(e.Notice) || e.Receipt != "receipt" {
			t.Errorf("%q became %+v", body, e)
		}
	})
}
