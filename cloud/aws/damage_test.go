// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"net/http"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/damage"
)

func TestDamagedAnswers(t *testing.T) {
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Keep: true, PageSize: 2, Boot: time.Millisecond, Stop: time.Millisecond})
	for _, message := range []string{
		`{"source":"aws.ec2","detail-type":"EC2 Spot Instance Interruption Warning","time":"2026-01-01T00:00:00Z","detail":{"instance-id":"i-1","instance-action":"terminate"}}`,
		`{"source":"aws.ec2","detail-type":"EC2 Instance Rebalance Recommendation","time":"2026-01-01T00:00:00Z","detail":{"instance-id":"i-1"}}`,
		`{"source":"aws.ec2","detail-type":"EC2 Instance State-change Notification","detail":{"instance-id":"i-1","state":"stopped"}}`,
		`{"source":"aws.health","detail-type":"AWS Health Event"}`,
	} {
		stub.Send(message, 0)
	}
	account := testAccount(stub.URL)
	account.Cloud.AWS.InterruptionQueue = infrav1.AWSInterruptionQueue{URL: stub.QueueURL()}
	target := damage.Target{
		Connect: func(transport http.RoundTripper) (cloud.Driver, error) {
			return newDriver(cloud.Config{Account: account, Credentials: testCredentials(), Connect: conformance.Through(transport)})
		},
		Machine:  request("token-1", nil),
		Balancer: cloud.BalancerRequest{Token: "balancer-1", OwnershipID: "owner", Namespace: "ns", Name: "lb", Port: 6443, Spec: testBalancer()},
		Secrets:  []string{testSecret},
		Drivers:  400,
	}
	var tape damage.Tape
	tape.Record(t, target, http.DefaultTransport, "token-2", "token-3")
	damage.Run(t, &tape, target)
}
