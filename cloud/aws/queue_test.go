// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance"
)

// listen returns the driver of an account that names the stub's queue.
func listen(t *testing.T, stub *ec2stub.Cloud, edit func(*infrav1.AWSInterruptionQueue)) *queueDriver {
	t.Helper()
	account := testAccount(stub.URL)
	// The calls go to the account's endpoint, whatever host this URL names.
	account.Cloud.AWS.InterruptionQueue = infrav1.AWSInterruptionQueue{URL: strings.Replace(stub.QueueURL(), "127.0.0.1", "sqs.example", 1),
		Rebalance: "Report"}
	if edit != nil {
		edit(&account.Cloud.AWS.InterruptionQueue)
	}
	d, err := newDriver(cloud.Config{Account: account, Credentials: testCredentials(), Connect: conformance.Through(http.DefaultTransport)})
	if err != nil {
		t.Fatal(err)
	}
	return d.(*queueDriver)
}

// TestMessages checks the meaning of each message, and that meaningless ones do no harm.
func TestMessages(t *testing.T) {
	t.Parallel()
	detail := func(more map[string]any) map[string]any {
		more["instance-id"] = "i-01"
		return more
	}
	replace := func(q *infrav1.AWSInterruptionQueue) { q.Rebalance = "Replace" }
	for name, test := range map[string]struct {
		body   string
		edit   func(*infrav1.AWSInterruptionQueue)
		want   cloud.Event
		notice string
	}{
		"interruption": {body: ec2stub.Event("aws.ec2", "EC2 Spot Instance Interruption Warning",
			detail(map[string]any{"instance-action": "terminate"})),
			want: cloud.Event{InstanceID: "i-01", Reclaim: cloud.ReclaimCertain}, notice: "will interrupt the spot instance"},
		"rebalance": {body: ec2stub.Event("aws.ec2", "EC2 Instance Rebalance Recommendation", detail(map[string]any{})),
			want: cloud.Event{InstanceID: "i-01"}, notice: "elevated risk of interruption"},
		"rebalance, to be acted on": {body: ec2stub.Event("aws.ec2", "EC2 Instance Rebalance Recommendation", detail(map[string]any{})),
			edit: replace,
			want: cloud.Event{InstanceID: "i-01", Reclaim: cloud.ReclaimAdvised}, notice: "elevated risk of interruption"},
		"terminated": {body: ec2stub.Event("aws.ec2", "EC2 Instance State-change Notification", detail(map[string]any{"state": "shutting-down"})),
			want: cloud.Event{InstanceID: "i-01", Changed: true}},
		"runs":          {body: ec2stub.Event("aws.ec2", "EC2 Instance State-change Notification", detail(map[string]any{"state": "running"}))},
		"another kind":  {body: ec2stub.Event("aws.ec2", "EBS Volume Notification", detail(map[string]any{}))},
		"another cloud": {body: ec2stub.Event("my.ec2", "EC2 Spot Instance Interruption Warning", detail(map[string]any{}))},
		"no instance": {body: ec2stub.Event("aws.ec2", "EC2 Spot Instance Interruption Warning", nil),
			want: cloud.Event{Reclaim: cloud.ReclaimCertain}, notice: "will interrupt"},
		"of other types": {body: ec2stub.Event("aws.ec2", "EC2 Spot Instance Interruption Warning",
			map[string]any{"instance-id": []string{"i-01"}, "instance-action": 4})},
		"no event": {body: `["a", "b"]`},
		"no JSON":  {body: "Dear Sir or Madam"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			l := listen(t, stub, test.edit)
			stub.Send(test.body, time.Hour)
			news, err := l.Receive(ctx)
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(news).To(HaveLen(1))
			got := news[0]
			g.Expect(got.Notice).To(ContainSubstring(test.notice))
			g.Expect(got.Notice == "").To(Equal(test.notice == ""))
			g.Expect(got.At).To(BeTemporally("~", time.Now().Add(-time.Hour), 10*time.Minute))
			g.Expect(stub.Messages()).To(HaveLen(1))
			g.Expect(l.Ack(ctx, news)).To(Succeed())
			g.Expect(stub.Messages()).To(BeEmpty())
			got.Notice, got.At, got.Receipt = "", time.Time{}, ""
			g.Expect(got).To(Equal(test.want))
		})
	}
}

// TestHealthEvent: after an AWS Health event, the next listing reads the details from EC2, which it
// otherwise does every few minutes.
func TestHealthEvent(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	l := listen(t, stub, nil)
	made, err := l.Ensure(ctx, request("token", nil))
	g.Expect(err).NotTo(HaveOccurred())
	noticed := func() string {
		all, err := l.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(HaveLen(1))
		return all[0].Notice
	}
	g.Expect(noticed()).To(BeEmpty())
	stub.Announce(made.ID, "instance-retirement", "The instance is running on degraded hardware")
	g.Expect(noticed()).To(BeEmpty())
	stub.Send(ec2stub.Event("aws.health", "AWS Health Event", map[string]any{"service": "EC2", "eventTypeCategory": "scheduledChange"}), 0)
	news, err := l.Receive(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(news).To(HaveLen(1))
	g.Expect(news[0].InstanceID).To(BeEmpty())
	g.Expect(noticed()).To(ContainSubstring("instance-retirement"))
}

// TestLongPoll: a poll waits for a message, but not beyond its call's deadline, and ends with the
// context. It returns up to ten messages. Messages that are not dismissed come again.
func TestLongPoll(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	l := listen(t, stub, nil)

	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Second)
	defer cancel()
	begun := time.Now()
	news, err := l.Receive(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(news).To(BeEmpty())
	g.Expect(time.Since(begun)).To(BeNumerically(">=", 4*time.Second))
	g.Expect(ctx.Err()).NotTo(HaveOccurred())

	time.AfterFunc(200*time.Millisecond, func() { stub.Warn("i-01") })
	news, err = l.Receive(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(news).To(HaveLen(1))

	for range 12 {
		stub.Warn("i-02")
	}
	stub.SetHidden(100 * time.Millisecond)
	news, err = l.Receive(t.Context())
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(news).To(HaveLen(10))
	g.Expect(l.Ack(t.Context(), news)).To(Succeed())
	for range 2 {
		news, err = l.Receive(t.Context())
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(news).To(HaveLen(2))
	}

	ctx, cancel = context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	g.Expect(l.Ack(t.Context(), news)).To(Succeed())
	_, err = l.Receive(ctx)
	g.Expect(code(err)).To(Equal(cloud.Unavailable), "%v", err)
}

// TestQueueInTrouble: each failure of a queue has its code and a remedy.
func TestQueueInTrouble(t *testing.T) {
	t.Parallel()
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_,
			_ = w.Write([]byte("<html>hello</html>"))
	}))
	t.Cleanup(foreign.Close)
	for name, test := range map[string]struct {
		edit   func(*infrav1.AWSInterruptionQueue)
		fault  *ec2stub.Fault
		expire bool
		code   cloud.Code
		says   string
	}{
		"no such queue": {edit: func(q *infrav1.AWSInterruptionQueue) { q.URL += "-2" }, code: cloud.NotFound, says: "interruptionQueue.url"},
		"not allowed": {fault: &ec2stub.Fault{Operation: receiveMessage, Code: "AccessDeniedException", Status: 403}, code: cloud.Unauthorized,
			says: "AccessDenied"},
		"throttled": {fault: &ec2stub.Fault{Operation: receiveMessage, Code: "ThrottlingException", Status: 400}, code: cloud.Throttled},
		"too many":  {fault: &ec2stub.Fault{Operation: receiveMessage, Code: "OverLimit", Status: 400}, code: cloud.Throttled},
		"broken":    {fault: &ec2stub.Fault{Operation: receiveMessage, Code: "InternalFailure", Status: 500}, code: cloud.Unavailable},
		"expired":   {expire: true, code: cloud.Unauthorized, says: "credentialsRef"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			l := listen(t, stub, test.edit)
			if test.fault != nil {
				stub.Inject(*test.fault)
			}
			if test.expire {
				stub.Expire()
			}
			_, err := l.Receive(t.Context())
			g.Expect(code(err)).To(Equal(test.code), "%v", err)
			g.Expect(err).To(MatchError(ContainSubstring(test.says)))
		})
	}
	account := testAccount(foreign.URL)
	account.Cloud.AWS.InterruptionQueue = infrav1.AWSInterruptionQueue{URL: foreign.URL + "/1/q"}
	d, err := newDriver(cloud.Config{Account: account, Credentials: testCredentials(), Connect: conformance.Through(http.DefaultTransport)})
	NewWithT(t).Expect(err).NotTo(HaveOccurred())
	_, err = d.(*queueDriver).Receive(t.Context())
	NewWithT(t).Expect(code(err)).NotTo(BeEmpty(), "%v", err)
	NewWithT(t).Expect(err).NotTo(MatchError(ContainSubstring("hello")))
}

// TestQueueOfTheRegion: a queue of another region is refused without a call.
func TestQueueOfTheRegion(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for url, fits := range map[string]bool{
		"https://sqs.us-east-1.amazonaws.com/123456789012/drover":       true,
		"https://us-east-1.queue.amazonaws.com/123456789012/drover":     true,
		"https://sqs.us-east-1.amazonaws.com.cn/123456789012/drover":    true,
		"https://sqs.eu-central-1.amazonaws.com/123456789012/drover":    false,
		"http://sqs.us-east-1.amazonaws.com/123456789012/drover":        false,
		"https://sqs.us-east-1x.amazonaws.com/123456789012/drover":      false,
		"https://%zz/123456789012/drover":                               false,
		"https://elsewhere.example/us-east-1.amazonaws.com/1/us-east-1": false,
	} {
		account := testAccount("")
		account.Cloud.AWS.InterruptionQueue = infrav1.AWSInterruptionQueue{URL: url}
		errs := validateAccount(account, field.NewPath("spec"))
		g.Expect(errs).To(HaveLen(map[bool]int{false: 1}[fits]), url)
		if !fits {
			g.Expect(errs[0].Field).To(Equal("spec.cloud.aws.interruptionQueue.url"))
		}
	}
}
