// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	. "github.com/onsi/gomega"
	"k8s.io/apimachinery/pkg/util/wait"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance"
	"github.com/drover-io/drover/cloud/conformance/faults"
)

// realOwner is the ownership ID of everything that TestRealAccount creates.
const realOwner = "drover-real-account-test"

// TestRealAccount creates and deletes one machine in a real account. It is skipped unless
// DROVER_AWS_REAL describes the place. The credentials come from the SDK's variables.
// docs/clouds/aws.md describes the setup and the cost.
func TestRealAccount(t *testing.T) {
	where := os.Getenv("DROVER_AWS_REAL")
	if where == "" {
		t.Skip("DROVER_AWS_REAL is not set: no real account was asked")
	}
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	l := life{often: 5 * time.Second, hidden: consistency, patience: 5 * time.Minute, stale: time.Hour, log: t.Logf,
		transport: http.DefaultTransport}
	if deadline, ok := t.Deadline(); ok { // the deadline of "go test", which does not wait for cleanup
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-l.patience-l.hidden))
		defer cancel()
	}
	if err := l.connect(where, os.Getenv); err != nil {
		t.Fatal(err)
	}
	if err := l.run(ctx); err != nil {
		t.Fatal(err)
	}
}

// TestLife runs TestRealAccount against the stub: it succeeds, and leaves nothing behind if it is
// interrupted or gets no answer.
func TestLife(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		fault ec2stub.Fault
		cut   bool // interrupted once the instance exists
		words string
		none  bool // no instance is created
	}{
		"whole":     {},
		"cut off":   {cut: true, words: "Unavailable"},
		"no answer": {fault: ec2stub.Fault{Operation: "RunInstances", Instead: faults.Cut, After: true}, words: "RunInstances"},
		"nothing is made": {fault: ec2stub.Fault{Operation: "RunInstances", Code: "VcpuLimitExceeded", Status: http.StatusBadRequest},
			words: "VcpuLimitExceeded", none: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			ctx, cut := context.WithCancel(t.Context())
			defer cut()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Boot: 20 * time.Millisecond, Stop: 20 * time.Millisecond})
			l := life{often: 10 * time.Millisecond, hidden: time.Second, patience: time.Minute, log: t.Logf,
				transport: transport(func(r *http.Request) (*http.Response, error) {
					resp, err := http.DefaultTransport.RoundTrip(r)
					if op := cloud.OperationOf(r.Context()).Name; test.cut && op == "RunInstances" {
						cut()
					}
					return resp, err
				})}
			where := fmt.Sprintf(`{"region": "us-east-1", "type": "t3.small", "image": "ami-0a", "subnet": "subnet-0a1", "endpoint": %q}`, stub.URL)
			g.Expect(l.connect(where, func(name string) string {
				return map[string]string{"AWS_ACCESS_KEY_ID": testKey, "AWS_SECRET_ACCESS_KEY": testSecret}[name]
			})).To(Succeed())
			stub.Launch(map[string]string{cloud.TagOwnership: realOwner, cloud.TagToken: "of-an-earlier-run"})
			_, foreign := stub.Launch(map[string]string{cloud.TagOwnership: "somebody-else", cloud.TagToken: "theirs"})
			const lag = 300 * time.Millisecond
			stub.SetLag(lag)
			g.Eventually(func() ([]cloud.Resource, error) { return l.driver.List(ctx) }).WithTimeout(time.Minute).Should(HaveLen(2))
			if test.fault.Operation != "" {
				stub.Inject(test.fault)
			}

			if err := l.run(ctx); test.words == "" {
				g.Expect(err).NotTo(HaveOccurred())
			} else {
				g.Expect(err).To(MatchError(And(ContainSubstring(test.words), Not(ContainSubstring("by hand")))))
			}
			g.Expect(stub.Left(cloud.TagOwnership, realOwner)).To(BeEmpty())
			g.Expect(foreign()).To(BeTrue())
			made := slices.DeleteFunc(stub.Books(), func(e ec2stub.Entry) bool { return e.Tags[cloud.TagMachine] == "" })
			g.Expect(made).To(HaveLen(map[bool]int{false: 1, true: 0}[test.none]))
		})
	}
}

// life is the life cycle of one machine.
type life struct {
	driver    cloud.Driver
	machine   *infrav1.AWSMachine
	transport http.RoundTripper

	often    time.Duration // poll interval
	hidden   time.Duration // how long EC2 may not show a new instance
	patience time.Duration // timeout of each step
	stale    time.Duration // minimum age of resources that an earlier run left behind
	log      func(format string, args ...any)
}

// connect creates the driver for a place described in JSON, with the SDK's variables.
func (l *life) connect(where string, variable func(string) string) error {
	var in struct{ Region, Type, Image, Subnet, Endpoint string }
	if err := json.Unmarshal([]byte(where), &in); err != nil {
		return fmt.Errorf("read DROVER_AWS_REAL: %w", err)
	}
	credentials := map[string][]byte{}
	for _, key := range []string{keyAccessKeyID, keySecretKey, keySessionToken} {
		if value := variable(strings.ToUpper(key)); value != "" {
			credentials[key] = []byte(value)
		}
	}
	l.machine = &infrav1.AWSMachine{
		InstanceType: in.Type, Image: infrav1.AWSImage{ID: in.Image}, Subnets: infrav1.AWSSelector{IDs: []string{in.Subnet}},
	}
	var err error
	l.driver, err = newDriver(cloud.Config{
		Account:     &infrav1.DroverAccountSpec{Cloud: infrav1.AccountCloud{AWS: &infrav1.AWSAccount{Region: in.Region, Endpoint: in.Endpoint}}},
		Credentials: credentials, Connect: conformance.Through(l.transport),
	})
	return err
}

// run creates the machine, repeats the create, waits until it runs, and deletes it. It always
// cleans up.
func (l *life) run(ctx context.Context) (err error) {
	if err := l.sweep(ctx); err != nil {
		return err
	}
	info, err := l.driver.Probe(ctx)
	if err != nil {
		return err
	}
	req := cloud.Request{
		Token: strings.ToLower(rand.Text()), OwnershipID: realOwner, Namespace: "test", Name: "real-account",
		// If this process is killed, the machine shuts itself down, and the next run deletes it.
		UserData: []byte("#cloud-config\nruncmd:\n- [shutdown, -h, \"+30\"]\n"),
		Spec:     &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{AWS: l.machine}},
	}
	offering, err := l.driver.Offering(ctx, req.Spec)
	if err != nil {
		return err
	}
	l.log("zones %v, capacity %v", info.FailureDomains, offering.Capacity)

	defer func() { err = errors.Join(err, l.clean(ctx, req.Token)) }()
	made, err := l.driver.Ensure(ctx, req)
	if err != nil {
		return err
	}
	again, err := l.driver.Ensure(ctx, req)
	if err != nil {
		return err
	}
	if again.ID != made.ID {
		return fmt.Errorf("the same request made %s, and then %s", made.ID, again.ID)
	}
	req.UserData = append(req.UserData, "hostname: other\n"...)
	if err := l.until(ctx, "another request with the token finds the instance", func() (bool, error) {
		again, err = l.driver.Ensure(ctx, req)
		return err == nil && again.ID == made.ID, err
	}); err != nil {
		return err
	}
	if err := l.until(ctx, "it alone is there, and runs", func() (bool, error) {
		found, err := l.living(ctx, req.Token)
		return len(found) == 1 && found[0].ID == made.ID && found[0].State == cloud.StateRunning && len(found[0].Addresses) > 0, err
	}); err != nil {
		return err
	}
	all, err := l.driver.List(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(all, func(r cloud.Resource) bool { return r.ID == made.ID }) {
		return fmt.Errorf("the listing lacks %s", made.ID)
	}
	if err := errors.Join(l.driver.Delete(ctx, []cloud.Resource{made})...); err != nil {
		return err
	}
	return l.until(ctx, "it is gone", func() (bool, error) {
		found, err := l.living(ctx, req.Token)
		return len(found) == 0, err
	})
}

// sweep deletes what a killed earlier run left behind.
func (l *life) sweep(ctx context.Context) error {
	all, err := l.driver.List(ctx)
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(r cloud.Resource) bool {
		return r.OwnershipID != realOwner || r.State == cloud.StateTerminated || time.Since(r.CreatedAt) < l.stale
	})
	if len(all) == 0 {
		return nil
	}
	l.log("an earlier run has left %+v", all)
	return errors.Join(l.driver.Delete(ctx, all)...)
}

// clean deletes resources with the token until none is alive. An instance that was never seen may
// be hidden.
func (l *life) clean(ctx context.Context, token string) error {
	ctx, begin, seen := context.WithoutCancel(ctx), time.Now(), false
	err := l.until(ctx, "nothing is left", func() (bool, error) {
		hidden := time.Since(begin) < l.hidden
		all, err := l.driver.Describe(ctx, []cloud.Reference{{Token: token}})
		if err != nil {
			return false, err
		}
		seen = seen || len(all) > 0
		living := alive(all)
		if len(living) == 0 {
			return seen || !hidden, nil
		}
		return false, errors.Join(l.driver.Delete(ctx, living)...)
	})
	if err != nil {
		return fmt.Errorf("delete by hand what has the tag %s=%s: %w", cloud.TagToken, token, err)
	}
	return nil
}

// living returns the resources with the token that are not terminated.
func (l *life) living(ctx context.Context, token string) ([]cloud.Resource, error) {
	all, err := l.driver.Describe(ctx, []cloud.Reference{{Token: token}})
	return alive(all), err
}

func alive(all []cloud.Resource) []cloud.Resource {
	return slices.DeleteFunc(all, func(r cloud.Resource) bool { return r.State == cloud.StateTerminated })
}

// until polls until look returns true. It returns look's last error if it times out.
func (l *life) until(ctx context.Context, what string, look func() (bool, error)) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, l.often, l.patience, true, func(context.Context) (bool, error) {
		var done bool
		done, last = look()
		return done, nil
	})
	if err != nil {
		return fmt.Errorf("waiting until %s: %w", what, errors.Join(err, last))
	}
	return nil
}
