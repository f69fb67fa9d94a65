// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/driverkit"
)

const (
	otherKey    = "AKIAMARKED0KEY000002"
	otherSecret = "marked/secret+key/of/another/account/002"
)

func otherCredentials() map[string][]byte {
	return map[string][]byte{keyAccessKeyID: []byte(otherKey), keySecretKey: []byte(otherSecret)}
}

// TestPlace: the place is the account, partition and region of the credentials, for each kind of
// credentials. It is read once.
func TestPlace(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		partition   string
		credentials map[string][]byte
		role        string
	}{
		"access key": {credentials: testCredentials()},
		"China":      {credentials: testCredentials(), partition: "aws-cn"},
		"role":       {credentials: testCredentials(), role: "arn:aws:iam::999999999999:role/claimed"},
		"web identity": {credentials: map[string][]byte{
			keyRoleARN: []byte("arn:aws:iam::999999999999:role/claimed"), keyIdentity: []byte("identity-token"),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Partition: test.partition})
			d := connect(t, stub, func(c *cloud.Config) {
				if c.Credentials = test.credentials; test.role != "" {
					c.Account.Cloud.AWS.AssumeRole = infrav1.AWSAssumeRole{ARN: test.role}
				}
			})
			partition := "aws"
			if test.partition != "" {
				partition = test.partition
			}
			for range 2 {
				info, err := d.Probe(ctx)
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(info.Place).To(Equal(partition + ":" + stub.AccountID() + ":us-east-1"))
			}
			g.Expect(stub.Calls()).To(HaveKeyWithValue("GetCallerIdentity", 1))
		})
	}
}

// TestOtherPlace: another account's access key at the same endpoint leads to another place, which
// does not show the first account's machines.
func TestOtherPlace(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	stub.Beside(ec2stub.New(t, ec2stub.Options{Keys: map[string]string{otherKey: otherSecret}}))
	one := connect(t, stub, nil)
	two := connect(t, stub, func(c *cloud.Config) { c.Credentials = otherCredentials() })
	_, err := one.Ensure(ctx, request("token", nil))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(two.List(ctx)).To(BeEmpty())
	here, err := one.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	there, err := two.Probe(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(here.Place).NotTo(Or(BeEmpty(), Equal(there.Place)))
}

// TestNoPlace: an answer that does not name an account proves no place.
func TestNoPlace(t *testing.T) {
	t.Parallel()
	for name, result := range map[string]string{
		"empty":       "",
		"no number":   "<Arn>arn:aws:iam::1:user/x</Arn><Account>" + testSecret + "</Account>",
		"no ARN":      "<Account>123456789012</Account>",
		"another ARN": "<Arn>arn:aws:iam::210987654321:user/x</Arn><Account>123456789012</Account>",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			d := connect(t, stub, func(c *cloud.Config) {
				c.Connect = through(func(r *http.Request) (*http.Response, error) {
					if cloud.OperationOf(r.Context()).Name != "GetCallerIdentity" {
						return http.DefaultTransport.RoundTrip(r)
					}
					body := "<GetCallerIdentityResponse><GetCallerIdentityResult>" + result + "</GetCallerIdentityResult></GetCallerIdentityResponse>"
					return &http.Response{StatusCode: http.StatusOK, Body: newBody(body), Header: http.Header{}, Request: r}, nil
				})
			})
			info, err := d.Probe(t.Context())
			g.Expect(info.Place).To(BeEmpty())
			g.Expect(code(err)).To(Equal(cloud.Unknown), "%v", err)
			g.Expect(err.Error()).NotTo(ContainSubstring(testSecret))
		})
	}
}

// TestFailureDomains: a machine's failure domains are the zones of its subnets. Reading them costs
// no call beyond those of Ensure.
func TestFailureDomains(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d, ok := cloud.Driver(connect(t, stub, nil)).(cloud.Placer)
	g.Expect(ok).To(BeTrue(), "the driver says which failure domains a machine may be in")
	for want, subnets := range map[string]infrav1.AWSSelector{
		"us-east-1b":                       {IDs: []string{"subnet-0b1"}},
		"us-east-1a us-east-1c":            {IDs: []string{"subnet-0c1", "subnet-0a1", "subnet-0a2"}},
		"us-east-1a us-east-1b us-east-1c": {Tags: map[string]string{"role": "nodes"}},
	} {
		before := stub.Calls()["DescribeSubnets"]
		zones := strings.Fields(want)
		req := request("token-"+zones[0]+"-"+zones[len(zones)-1], func(m *infrav1.AWSMachine) { m.Subnets = subnets })
		g.Expect(d.FailureDomains(ctx, req.Spec)).To(Equal(zones))
		req.FailureDomain = zones[0]
		_, err := d.Ensure(ctx, req)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(d.FailureDomains(ctx, req.Spec)).To(Equal(zones))
		g.Expect(stub.Calls()["DescribeSubnets"]).To(Equal(before + 1))
	}
	_, err := d.FailureDomains(ctx, &infrav1.DroverMachineFields{})
	g.Expect(code(err)).To(Equal(cloud.InvalidSpec), "%v", err)
}

// TestOpenAttemptIsLookedFor: if a machine has no subnet any more in the zone of an earlier create,
// the driver finds that create's instance by its token.
func TestOpenAttemptIsLookedFor(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	made, err := d.Ensure(ctx, request("token", nil))
	g.Expect(err).NotTo(HaveOccurred())
	elsewhere := request("token", func(m *infrav1.AWSMachine) { m.Subnets = infrav1.AWSSelector{IDs: []string{"subnet-0b1"}} })
	elsewhere.MaybeSent = true
	again, err := d.Ensure(ctx, elsewhere)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(again.ID).To(Equal(made.ID))

	elsewhere.Token = "never-sent"
	_, err = d.Ensure(ctx, elsewhere)
	g.Expect(code(err)).To(Equal(cloud.NoCapacity), "%v", err)
}

// TestPageTooLarge: if a page of instances exceeds the maximum size of an answer, the driver
// requests smaller pages, also in the next listing.
func TestPageTooLarge(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	refused := 0
	d := connect(t, stub, func(c *cloud.Config) {
		c.Connect = through(func(r *http.Request) (*http.Response, error) {
			form, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			r.Body = io.NopCloser(bytes.NewReader(form))
			resp, err := http.DefaultTransport.RoundTrip(r)
			if err == nil && bytes.Contains(form, []byte("Action=DescribeInstances&")) && !bytes.Contains(form, []byte("MaxResults=250&")) {
				refused++
				resp.ContentLength = driverkit.MaxAnswer + 1
			}
			return resp, err
		})
	})
	_, err := d.Ensure(ctx, request("token", nil))
	g.Expect(err).NotTo(HaveOccurred())
	for range 2 {
		g.Expect(d.List(ctx)).To(HaveLen(1))
	}
	g.Expect(refused).To(Equal(2), "1,000 and 500 were too many")
	g.Expect(d.Describe(ctx, []cloud.Reference{{Token: "token"}})).To(HaveLen(1))
	g.Expect(refused).To(Equal(2))
}

// TestPageAlwaysTooLarge: if every page is too large, the listing returns an error.
func TestPageAlwaysTooLarge(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	calls := 0
	d := connect(t, &ec2stub.Cloud{URL: "http://127.0.0.1:1"}, func(c *cloud.Config) {
		c.Connect = through(func(r *http.Request) (*http.Response, error) {
			calls++
			return &http.Response{StatusCode: http.StatusOK, Body: newBody(""), ContentLength: driverkit.MaxAnswer + 1, Header: http.Header{}, Request: r}, nil
		})
	})
	_, err := d.List(t.Context())
	g.Expect(code(err)).To(Equal(cloud.Unknown), "%v", err)
	g.Expect(calls).To(BeNumerically("<", 12))
}

// TestShortSecret: a secret that is part of AWS's own message does not change how the answer is
// classified, and is not shown.
func TestShortSecret(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	for secret, fault := range map[string]ec2stub.Fault{
		"Limit":      {Code: "RequestLimitExceeded", Status: http.StatusServiceUnavailable},
		"Mis":        {Code: parameterMismatch, Status: http.StatusBadRequest},
		"Amount":     {Code: "InsufficientInstanceCapacity", Status: http.StatusInternalServerError},
		"sufficient": {Code: "InsufficientInstanceCapacity", Status: http.StatusInternalServerError},
	} {
		want := codeOf(fault.Code, fault.Status)
		if fault.Code == parameterMismatch {
			want = cloud.Unavailable // there is no instance with the token
		}
		stub := ec2stub.New(t, ec2stub.Options{Keys: map[string]string{testKey: secret}})
		d := connect(t, stub, func(c *cloud.Config) {
			c.Credentials = maps.Clone(c.Credentials)
			c.Credentials[keySecretKey] = []byte(secret)
		})
		fault.Operation = "RunInstances"
		stub.Inject(fault)
		_, err := d.Ensure(ctx, request("token", nil))
		g.Expect(code(err)).To(Equal(want), "%s: %v", secret, err)
		for cause := err; cause != nil; cause = errors.Unwrap(cause) {
			g.Expect(cause.Error()).NotTo(ContainSubstring(secret))
		}
	}
}

// TestEndedForWantOfCapacity: an instance that EC2 accepts, and that then ends for lack of
// capacity, has the code for that.
func TestEndedForWantOfCapacity(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		end  func(*ec2stub.Cloud) func(context.Context, *driver, cloud.Resource)
		want cloud.Code
	}{
		"no room": {end: func(stub *ec2stub.Cloud) func(context.Context, *driver, cloud.Resource) {
			stub.Inject(ec2stub.Fault{Operation: "RunInstances", Birth: ec2stub.Roomless})
			return nil
		}, want: cloud.NoCapacity},
		"taken back": {end: func(stub *ec2stub.Cloud) func(context.Context, *driver, cloud.Resource) {
			return func(_ context.Context, _ *driver, r cloud.Resource) { stub.Interrupt(r.ID) }
		}, want: cloud.NoCapacity},
		"broken": {end: func(stub *ec2stub.Cloud) func(context.Context, *driver, cloud.Resource) {
			stub.Inject(ec2stub.Fault{Operation: "RunInstances", Birth: ec2stub.Stillborn})
			return nil
		}},
		"deleted": {end: func(*ec2stub.Cloud) func(context.Context, *driver, cloud.Resource) {
			return func(ctx context.Context, d *driver, r cloud.Resource) { d.Delete(ctx, []cloud.Resource{r}) }
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, ctx := NewWithT(t), t.Context()
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			d := connect(t, stub, nil)
			after := test.end(stub)
			made, err := d.Ensure(ctx, request("token", nil))
			g.Expect(err).NotTo(HaveOccurred())
			if after != nil {
				after(ctx, d, made)
			}
			found, err := d.Describe(ctx, []cloud.Reference{{Token: "token"}})
			g.Expect(err).NotTo(HaveOccurred())
			g.Expect(found).To(HaveExactElements(And(HaveField("State", cloud.StateTerminated), HaveField("Code", test.want))))
			g.Expect(found[0].Reason).NotTo(HavePrefix("NoCapacity"))
		})
	}
}

// TestNextAttempt: EC2 ties a token to the failed request. The next attempt, in another subnet, has
// its own token.
func TestNextAttempt(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	stub.SetQuota(1)
	_, err := d.Ensure(ctx, request("other", nil))
	g.Expect(err).NotTo(HaveOccurred())
	named := func(id string) cloud.Request {
		return request("token", func(m *infrav1.AWSMachine) { m.Subnets = infrav1.AWSSelector{IDs: []string{id}} })
	}
	_, err = d.Ensure(ctx, named("subnet-0a1"))
	g.Expect(code(err)).To(Equal(cloud.QuotaExceeded), "%v", err)
	stub.SetQuota(0)
	_, err = d.Ensure(ctx, named("subnet-0a2"))
	g.Expect(code(err)).To(Equal(cloud.Unavailable), "the same attempt is another request: %v", err)
	again := named("subnet-0a2")
	again.Attempt++
	_, err = d.Ensure(ctx, again)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stub.Left(cloud.TagToken, "token")).To(HaveLen(1))
}
