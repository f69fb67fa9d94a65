// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
	"github.com/drover-io/drover/cloud/conformance"
)

// connect returns a driver for the stub. edit may change its configuration.
func connect(t *testing.T, stub *ec2stub.Cloud, edit func(*cloud.Config)) *driver {
	t.Helper()
	cfg := cloud.Config{Account: testAccount(stub.URL), Credentials: testCredentials(), Connect: conformance.Through(http.DefaultTransport)}
	if edit != nil {
		edit(&cfg)
	}
	d, err := newDriver(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return d.(*driver)
}

func request(token string, edit func(*infrav1.AWSMachine)) cloud.Request {
	return cloud.Request{Token: token, OwnershipID: "owner", Namespace: "ns", Name: "m-" + token,
		UserData: []byte("#cloud-config\n"), Spec: testMachine(edit), FailureDomain: "us-east-1a"}
}

func code(err error) cloud.Code { return cloud.CodeOf(err) }

// transport is a function as an http.RoundTripper.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// through returns a Connect for a Config.
func through(f transport) func(*tls.Config) (http.RoundTripper, error) { return conformance.Through(f) }

// TestCallsOfAFleet counts the calls for 300 machines: to create them, to list them for ten idle
// minutes, and to delete them.
func TestCallsOfAFleet(t *testing.T) {
	t.Parallel()
	g, ctx, n := NewWithT(t), t.Context(), 300
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	var made []cloud.Resource
	var refs []cloud.Reference
	for i := range n {
		r, err := d.Ensure(ctx, request(fmt.Sprintf("token-%03d", i), nil))
		g.Expect(err).NotTo(HaveOccurred())
		made, refs = append(made, r), append(refs, cloud.Reference{Token: r.Token, ProviderID: r.ProviderID})
	}
	calls := func() (sum int) {
		for _, n := range stub.Calls() {
			sum += n
		}
		return sum
	}
	create := calls()
	g.Expect(create).To(BeNumerically("<=", n*11/10), "%v", stub.Calls())
	g.Expect(stub.Calls()["RunInstances"]).To(Equal(n))

	for range 10 { // one listing per minute
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(HaveLen(n))
	}
	// The clock stands still here. In ten minutes, leftovers and notices would be listed a second
	// time.
	idle := calls() - create + 5
	g.Expect(idle).To(BeNumerically("<=", n/10), "%v", stub.Calls())

	before := calls()
	for i := 0; i < n; i += maxBatch {
		end := min(i+maxBatch, n)
		for _, err := range d.Delete(ctx, made[i:end]) {
			g.Expect(err).NotTo(HaveOccurred())
		}
		found, err := d.Describe(ctx, refs[i:end])
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(found).To(HaveEach(HaveField("State", cloud.StateTerminated)))
	}
	g.Expect(calls()-before).To(BeNumerically("<=", n*5/100), "%v", stub.Calls())
}

// TestImageThatKeeps: a data volume that the image keeps is deleted with the machine, without
// another call. If the machine itself names the device, its own settings apply.
func TestImageThatKeeps(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	keeping := func(m *infrav1.AWSMachine) { m.Image.ID = ec2stub.KeepingImage }
	req := request("token", keeping)
	p, err := d.plan(ctx, req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(blockDevices(p)[1:]).To(Equal([]types.BlockDeviceMapping{{DeviceName: aws.String("/dev/sdb"), Ebs: &types.EbsBlockDevice{
		DeleteOnTermination: aws.Bool(true), SnapshotId: aws.String("snap-02"), VolumeSize: aws.Int32(1), VolumeType: "gp3",
	}}}))
	p.spec.Volumes = []infrav1.AWSDataVolume{{DeviceName: "/dev/sdb", AWSVolume: infrav1.AWSVolume{SizeGiB: 7}}}
	g.Expect(blockDevices(p)).To(HaveLen(2))
	g.Expect(*blockDevices(p)[1].Ebs.VolumeSize).To(Equal(int32(7)))

	made, err := d.Ensure(ctx, request("token", keeping))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(d.Delete(ctx, []cloud.Resource{made})).To(Equal([]error{nil}))
	g.Expect(stub.Left(cloud.TagToken, "token")).To(BeEmpty())
	g.Expect(stub.Calls()).NotTo(HaveKey("DeleteVolume"))
}

// TestManyAskOnce creates fifty machines of one template in parallel.
func TestManyAskOnce(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			_, err := d.Ensure(t.Context(), request(fmt.Sprintf("token-%03d", i), func(m *infrav1.AWSMachine) {
				m.Image = infrav1.AWSImage{SSMParameter: "/aws/service/node/image"}
			}))
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, op := range []string{"GetParameter", "DescribeImages", "DescribeSubnets", "DescribeSecurityGroups"} {
		g.Expect(stub.Calls()).To(HaveKeyWithValue(op, 1), op)
	}
}

// TestResolution checks how images, subnets and groups are resolved.
func TestResolution(t *testing.T) {
	t.Parallel()
	lookup := func(owner, name string, arch infrav1.AWSArchitecture) func(*infrav1.AWSMachine) {
		return func(m *infrav1.AWSMachine) {
			m.Image = infrav1.AWSImage{Lookup: infrav1.AWSImageLookup{Owners: []string{owner}, Name: name, Architecture: arch}}
		}
	}
	for name, test := range map[string]struct {
		edit          func(*infrav1.AWSMachine)
		zone          string
		image, subnet string
		code          cloud.Code
	}{
		"the newest":                {edit: lookup("099720109477", "node-*", ""), image: "ami-0c"},
		"the newest of a processor": {edit: lookup("099720109477", "node-*", "amd64"), image: "ami-0b"},
		"of another owner":          {edit: lookup("111111111111", "node-*", ""), code: cloud.NotFound},
		"by parameter": {edit: func(m *infrav1.AWSMachine) { m.Image = infrav1.AWSImage{SSMParameter: "/aws/service/node/image"} },
			image: "ami-0b"},
		"no such parameter": {edit: func(m *infrav1.AWSMachine) { m.Image = infrav1.AWSImage{SSMParameter: "/none"} },
			code: cloud.NotFound},
		"no image in the parameter": {edit: func(m *infrav1.AWSMachine) { m.Image = infrav1.AWSImage{SSMParameter: "/broken"} },
			code: cloud.InvalidSpec},
		"no such image":       {edit: func(m *infrav1.AWSMachine) { m.Image.ID = "ami-0dead" }, code: cloud.InvalidSpec},
		"most free addresses": {zone: "us-east-1a", subnet: "subnet-0a2"},
		"of another zone":     {zone: "us-east-1b", subnet: "subnet-0b1"},
		"of any zone":         {subnet: "subnet-0a2"},
		"of a zone without":   {zone: "us-east-1f", code: cloud.NoCapacity},
		"no such tag": {edit: func(m *infrav1.AWSMachine) { m.Subnets.Tags = map[string]string{"role": "none"} },
			code: cloud.NotFound},
		"any value of a tag": {edit: func(m *infrav1.AWSMachine) { m.Subnets.Tags = map[string]string{"role": ""} }, subnet: "subnet-0a2"},
		"a value is no pattern": {edit: func(m *infrav1.AWSMachine) { m.Subnets.Tags = map[string]string{"role": "n*"} },
			code: cloud.NotFound},
		"no group in the VPC": {edit: func(m *infrav1.AWSMachine) {
			m.SecurityGroups.Tags = map[string]string{"role": "other"}
		}, code: cloud.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			d := connect(t, ec2stub.New(t, ec2stub.Options{Keys: testKeys()}), nil)
			req := request("token", test.edit)
			req.FailureDomain = test.zone
			p, err := d.plan(t.Context(), req)
			g.Expect(code(err)).To(Equal(test.code), "%v", err)
			if test.image != "" {
				g.Expect(p.image.id).To(Equal(test.image))
			}
			if test.subnet != "" {
				g.Expect(p.subnet.id).To(Equal(test.subnet))
				g.Expect(p.groups).To(Equal([]string{"sg-01"}))
			}
		})
	}
}

// TestOpenZone loses the answer of a create. A retry in the zone returns the same instance, even if
// the zone has no capacity any more. If a retry is not possible, the driver finds the instance by
// its token.
func TestOpenZone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	undo := stub.Inject(ec2stub.Fault{Operation: "RunInstances", Code: "InternalError", Status: http.StatusInternalServerError, After: true})
	req := request("token", nil)
	_, err := d.Ensure(t.Context(), req)
	g.Expect(code(err)).To(Equal(cloud.Unavailable))
	undo()

	req.MaybeSent = true
	away := req
	away.FailureDomain = "us-east-1f"
	found, err := d.Ensure(t.Context(), away)
	g.Expect(err).NotTo(HaveOccurred())

	stub.SetCapacity("us-east-1a", 0)
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(stub.Left(cloud.TagToken, "token")).To(Equal([]string{made.ID}))
	g.Expect(found.ID).To(Equal(made.ID))
	g.Expect(made.ImageID).To(Equal("ami-0a"))
}

// TestNextZone: if one zone has no capacity, the same token creates the machine in the next zone.
func TestNextZone(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	stub.SetCapacity("us-east-1a", 0)
	req := request("token", nil)
	_, err := d.Ensure(t.Context(), req)
	g.Expect(code(err)).To(Equal(cloud.NoCapacity))
	req.FailureDomain = "us-east-1b"
	made, err := d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.FailureDomain).To(Equal("us-east-1b"))
	g.Expect(made.ProviderID).To(Equal("aws:///us-east-1b/" + made.ID))
}

// TestMismatch repeats the token of a failed create with other user data: nothing is created. If an
// earlier process may have sent the token, the refusal is definite, so that the engine finds out
// whether that made an instance. Otherwise the outcome is open, as something else sent the token.
func TestMismatch(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	stub.SetCapacity("us-east-1a", 0)
	req := request("token", nil)
	_, err := d.Ensure(t.Context(), req)
	g.Expect(code(err)).To(Equal(cloud.NoCapacity))
	stub.SetCapacity("us-east-1a", -1)
	req.UserData = []byte("#cloud-config\nhostname: other\n")
	for maybeSent, want := range map[bool]cloud.Code{false: cloud.Unavailable, true: cloud.Conflict} {
		req.MaybeSent = maybeSent
		_, err = d.Ensure(t.Context(), req)
		g.Expect(code(err)).To(Equal(want), "%v", err)
		g.Expect(err).To(MatchError(HaveSuffix(
			"an earlier request with this machine's token had different parameters, and EC2 shows no instance of it")))
	}
	req.Attempt, req.MaybeSent = 1, false // the next attempt has its own token
	_, err = d.Ensure(t.Context(), req)
	g.Expect(err).NotTo(HaveOccurred())
}

// TestSpot: after a spot instance is taken back, the next listing shows this and the reason.
func TestSpot(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	made, err := d.Ensure(ctx, request("token", func(m *infrav1.AWSMachine) { m.Market = infrav1.AWSMarket{Type: "spot"} }))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(made.Interruptible).To(BeTrue())
	stub.Interrupt(made.ID)
	all, err := d.List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(HaveExactElements(And(HaveField("State", cloud.StateTerminated),
		HaveField("Reason", ContainSubstring("SpotInstanceTermination")))))
}

// TestNotices: EC2's notices and failed status checks of an instance appear in listings and live
// reads, for a few calls every five minutes. A missing permission for them causes no error.
func TestNotices(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	var ids []string
	for i := range 4 {
		made, err := connect(t, stub, nil).Ensure(ctx, request(fmt.Sprint("token-", i), nil))
		g.Expect(err).NotTo(HaveOccurred())
		ids = append(ids, made.ID)
	}
	stub.Announce(ids[0], "instance-retirement", "The instance is running on degraded hardware")
	stub.Announce(ids[1], "instance-reboot", "[Completed] Scheduled reboot")
	stub.Impair(ids[2])
	theirs, _ := stub.Launch(map[string]string{"team": "others"})
	stub.Impair(theirs)
	want := ConsistOf(
		And(HaveField("ID", ids[0]), HaveField("Notice",
			ContainSubstring("instance-retirement from 2030-01-02T03:04:05Z: The instance is running"))),
		And(HaveField("ID", ids[1]), HaveField("Notice", "")),
		And(HaveField("ID", ids[2]), HaveField("Notice", ContainSubstring("status check fails"))),
		And(HaveField("ID", ids[3]), HaveField("Notice", "")),
	)
	d := connect(t, stub, nil)
	for range 2 {
		all, err := d.List(ctx)
		g.Expect(err).NotTo(HaveOccurred())
		g.Expect(all).To(want)
	}
	found, err := d.Describe(ctx, []cloud.Reference{{Token: "token-0"}, {Token: "token-1"}, {Token: "token-2"}, {Token: "token-3"}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(want)
	g.Expect(stub.Calls()).To(HaveKeyWithValue("DescribeInstanceStatus", 3))
	g.Expect(d.previousNotices()).To(And(HaveLen(3), Not(HaveKey(theirs))), "the account may have many instances that are not Drover's")

	defer stub.Inject(ec2stub.Fault{Operation: "DescribeInstanceStatus", Code: "UnauthorizedOperation", Status: http.StatusForbidden})()
	all, err := connect(t, stub, nil).List(ctx)
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(all).To(HaveLen(4))
}

// TestTerminateBatch: instances that can't be deleted do not block the rest of their batch.
func TestTerminateBatch(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	var batch []cloud.Resource
	for i := range 20 {
		made, err := d.Ensure(ctx, request(fmt.Sprintf("token-%02d", i), nil))
		g.Expect(err).NotTo(HaveOccurred())
		batch = append(batch, made)
	}
	stub.Protect(batch[3].ID)
	batch[7].ID, batch[11].ID = "i-0dead", "i-0beef" // do not exist
	batch[19].ID = "malformed"
	errs := d.Delete(ctx, batch)
	g.Expect(errs[3]).To(MatchError(ContainSubstring("disableApiTermination")))
	g.Expect(code(errs[3])).To(Equal(cloud.Conflict))
	g.Expect(code(errs[19])).To(Equal(cloud.InvalidSpec))
	for i, err := range errs {
		if i != 3 && i != 19 {
			g.Expect(err).NotTo(HaveOccurred(), "%d", i)
		}
	}
	g.Expect(stub.Calls()["TerminateInstances"]).To(Equal(4)) // a retry without each group of culprits
	found, err := d.Describe(ctx, []cloud.Reference{{Token: batch[0].Token}, {Token: batch[3].Token}})
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(found).To(ConsistOf(HaveField("State", cloud.StateTerminated), HaveField("State", cloud.StateRunning)))
}

// TestCredentials logs in with each kind of credentials in a Secret. Refusals are in EC2's own
// words.
func TestCredentials(t *testing.T) {
	t.Parallel()
	role := func(arn, externalID string) func(*cloud.Config) {
		return func(c *cloud.Config) {
			c.Account.Cloud.AWS.AssumeRole = infrav1.AWSAssumeRole{ARN: arn, ExternalID: externalID}
		}
	}
	secret := func(keyValues ...string) func(*cloud.Config) {
		return func(c *cloud.Config) {
			c.Credentials = map[string][]byte{}
			for i := 0; i < len(keyValues); i += 2 {
				c.Credentials[keyValues[i]] = []byte(keyValues[i+1])
			}
		}
	}
	const ours, foreign = "arn:aws:iam::123456789012:role/drover", "arn:aws:iam::210987654321:role/foreign"
	for name, test := range map[string]struct {
		edit  func(*cloud.Config)
		token string // session token that the stub requires
		code  cloud.Code
		words string
	}{
		"keys": {},
		"session token": {edit: secret(keyAccessKeyID, testKey, keySecretKey, testSecret, keySessionToken, "marked-session"),
			token: "marked-session"},
		"no session token": {token: "marked-session", code: cloud.Unauthorized, words: "AuthFailure"},
		"wrong secret": {edit: secret(keyAccessKeyID, testKey, keySecretKey, "marked-wrong"), code: cloud.Unauthorized,
			words: "SignatureDoesNotMatch"},
		"unknown key": {edit: secret(keyAccessKeyID, "AKIAOTHER", keySecretKey, testSecret), code: cloud.Unauthorized,
			words: "AuthFailure"},
		"role":              {edit: role(ours, "")},
		"role, external ID": {edit: role(foreign, "drover-test")},
		"role, refused":     {edit: role(foreign, "other"), code: cloud.Unauthorized, words: "AccessDenied"},
		"web identity":      {edit: secret(keyRoleARN, ours, keyIdentity, "identity-token")},
		"web identity, refused": {edit: secret(keyRoleARN, ours, keyIdentity, "marked-identity"),
			code: cloud.Unauthorized, words: "InvalidIdentityToken"},
		"old clock": {edit: func(c *cloud.Config) {
			c.Connect = through(func(r *http.Request) (*http.Response, error) {
				r.Header.Set("X-Amz-Date", "20200101T000000Z")
				return http.DefaultTransport.RoundTrip(r)
			})
		}, code: cloud.Unauthorized, words: "RequestExpired"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), SessionToken: test.token})
			d := connect(t, stub, test.edit)
			info, err := d.Probe(t.Context())
			g.Expect(code(err)).To(Equal(test.code), "%v", err)
			if test.code != "" {
				g.Expect(err).To(MatchError(And(ContainSubstring(test.words), Not(ContainSubstring("marked")))))
				return
			}
			g.Expect(info.FailureDomains).To(Equal([]string{"us-east-1a", "us-east-1b", "us-east-1c"}))
		})
	}
}

// TestSessionName: the session of an assumed role has the name of the account's namespace, however
// long that is.
func TestSessionName(t *testing.T) {
	t.Parallel()
	const role = "arn:aws:iam::123456789012:role/drover"
	long := strings.Repeat("x", 62)
	for name, edit := range map[string]func(*cloud.Config){
		"role": func(c *cloud.Config) { c.Account.Cloud.AWS.AssumeRole = infrav1.AWSAssumeRole{ARN: role} },
		"web identity": func(c *cloud.Config) {
			c.Credentials = map[string][]byte{keyRoleARN: []byte(role), keyIdentity: []byte("identity-token")}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			var sessions []string
			for _, namespace := range []string{"team-a", "team-b", long + "a", long + "b"} {
				d := connect(t, stub, func(c *cloud.Config) {
					edit(c)
					c.Namespace = namespace
					c.Connect = through(func(r *http.Request) (*http.Response, error) {
						if r.Body == nil {
							return http.DefaultTransport.RoundTrip(r)
						}
						body, err := io.ReadAll(r.Body)
						if err != nil {
							return nil, err
						}
						r.Body = io.NopCloser(bytes.NewReader(body))
						form, _ := url.ParseQuery(string(body))
						if session := form.Get("RoleSessionName"); session != "" {
							sessions = append(sessions, session)
						}
						return http.DefaultTransport.RoundTrip(r)
					})
				})
				_, err := d.Probe(t.Context())
				g.Expect(err).NotTo(HaveOccurred())
			}
			g.Expect(sessions).To(HaveLen(4))
			g.Expect(sessions[:2]).To(Equal([]string{"drover-team-a", "drover-team-b"}))
			g.Expect(sessions[2]).NotTo(Equal(sessions[3]))
			for _, session := range sessions {
				g.Expect(session).To(MatchRegexp(`^[\w+=,.@-]{2,64}$`), "what AWS accepts")
			}
		})
	}
}

// TestAmbient: the manager's own credentials never go to a tenant's endpoint.
func TestAmbient(t *testing.T) {
	g := NewWithT(t)
	t.Setenv("AWS_CA_BUNDLE", "")
	t.Setenv("AWS_ACCESS_KEY_ID", testKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", testSecret)
	_, err := newDriver(cloud.Config{Account: testAccount("http://127.0.0.1:1"), Connect: conformance.Through(http.DefaultTransport)})
	g.Expect(code(err)).To(Equal(cloud.InvalidSpec))
	account := testAccount("")
	account.CredentialsRef, account.Cloud.AWS.DualStack, account.Cloud.AWS.FIPS = infrav1.LocalReference{}, infrav1.FeatureEnabled,
		infrav1.FeatureEnabled
	var asked []string
	d, err := newDriver(cloud.Config{Account: account, Connect: through(func(r *http.Request) (*http.Response, error) {
		asked = append(asked, r.URL.Host+" "+r.Header.Get("Authorization")[:32])
		return nil, context.DeadlineExceeded
	})})
	g.Expect(err).NotTo(HaveOccurred())
	_, err = d.Probe(t.Context())
	g.Expect(code(err)).To(Equal(cloud.Unavailable))
	g.Expect(asked).To(Equal([]string{"ec2-fips.us-east-1.api.aws AWS4-HMAC-SHA256 Credential=AKIA"}))
}

// TestPartitions: each region's endpoint is in its AWS partition.
func TestPartitions(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	for region, domain := range map[string]string{
		"eu-central-1":  ".eu-central-1.amazonaws.com",
		"us-gov-west-1": ".us-gov-west-1.amazonaws.com",
		"cn-north-1":    ".cn-north-1.amazonaws.com.cn",
	} {
		account := testAccount("")
		account.Cloud.AWS.Region = region
		var asked []string
		d, err := newDriver(cloud.Config{Account: account, Credentials: testCredentials(),
			Connect: through(func(r *http.Request) (*http.Response, error) {
				asked = append(asked, r.URL.Host)
				return nil, context.DeadlineExceeded
			})})
		g.Expect(err).NotTo(HaveOccurred())
		_, _ = d.Probe(t.Context())
		_, _ = d.(*driver).findPlace(t.Context())
		g.Expect(asked).To(Equal([]string{"ec2" + domain, "sts" + domain}))
	}
}

// TestThrottled: with EC2's buckets empty, one call gets one answer, and the SDK does not retry.
func TestThrottled(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Throttle: true})
	d := connect(t, stub, nil)
	throttled := 0
	for i := range 20 {
		if _, err := d.Ensure(t.Context(), request(fmt.Sprintf("token-%02d", i), nil)); code(err) == cloud.Throttled {
			throttled++
		}
	}
	g.Expect(throttled).To(BeNumerically(">", 0))
	g.Expect(stub.Calls()["RunInstances"]).To(Equal(20))
}

// TestThrottledByResources: besides the bucket for calls, EC2 has one for the instances that they
// name.
func TestThrottledByResources(t *testing.T) {
	t.Parallel()
	g := NewWithT(t)
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys(), Throttle: true})
	d := connect(t, stub, nil)
	throttled := 0
	ids := make([]string, 400)
	for i := range ids {
		ids[i] = fmt.Sprintf("i-0%03d", i)
	}
	for range 4 {
		_, err := d.ec2.TerminateInstances(t.Context(), &ec2.TerminateInstancesInput{InstanceIds: ids})
		if code(d.secrets.typed("TerminateInstances", err)) == cloud.Throttled {
			throttled++
		}
	}
	g.Expect(throttled).To(BeElementOf(1, 2), "1,000 instances may go at once, and 20 more in each second")
}

// TestOffering checks the offering of a machine.
func TestOffering(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		edit         func(*infrav1.AWSMachine)
		want         map[corev1.ResourceName]string
		architecture string
	}{
		"small": {nil, map[corev1.ResourceName]string{"cpu": "2", "memory": "2Gi", "pods": "11", "ephemeral-storage": "8Gi"}, "amd64"},
		"arm": {func(m *infrav1.AWSMachine) {
			m.InstanceType, m.Image.ID = "m7g.large", "ami-0c"
			m.RootVolume = &infrav1.AWSVolume{SizeGiB: 50}
		}, map[corev1.ResourceName]string{"cpu": "2", "memory": "8Gi", "pods": "29", "ephemeral-storage": "50Gi"}, "arm64"},
		"GPUs": {func(m *infrav1.AWSMachine) {
			m.InstanceType = "p4d.24xlarge"
			m.CPUOptions = infrav1.AWSCPUOptions{CoreCount: 24, ThreadsPerCore: 1}
		}, map[corev1.ResourceName]string{"cpu": "24", "memory": "1152Gi", "pods": "110", "nvidia.com/gpu": "8"}, "amd64"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
			d := connect(t, stub, nil)
			for range 2 {
				offering, err := d.Offering(t.Context(), testMachine(test.edit))
				g.Expect(err).NotTo(HaveOccurred())
				g.Expect(offering.Architecture).To(Equal(test.architecture))
				g.Expect(offering.OperatingSystem).To(Equal("linux"))
				for name, want := range test.want {
					got := offering.Capacity[name]
					g.Expect(got.String()).To(Equal(want), string(name))
				}
			}
			g.Expect(stub.Calls()).To(HaveKeyWithValue("DescribeInstanceTypes", 1))
		})
	}
}

// TestUnexpectedResponses: an answer that is not AWS's never counts as empty, and is never
// repeated.
func TestUnexpectedResponses(t *testing.T) {
	t.Parallel()
	page := "<html><body>" + testSecret + "</body></html>"
	for name, test := range map[string]struct {
		status int
		body   string
		code   cloud.Code
	}{
		"empty":             {200, "", cloud.Unknown},
		"a page":            {200, page, cloud.Unknown},
		"another operation": {200, "<DescribeImagesResponse></DescribeImagesResponse>", cloud.Unknown},
		"half":              {200, "<DescribeInstancesResponse><reservationSet>", cloud.Unknown},
		"a page of a proxy": {502, page, cloud.Unavailable},
		"a log-in":          {403, page, cloud.Unauthorized},
		"nothing, refused":  {400, "", cloud.Unknown},
		"repeats the secret": {400, "<Response><Errors><Error><Code>AuthFailure</Code><Message>" + testSecret +
			"</Message></Error></Errors></Response>", cloud.Unauthorized},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			d := connect(t, &ec2stub.Cloud{URL: "http://127.0.0.1:1"}, func(c *cloud.Config) {
				c.Connect = through(func(r *http.Request) (*http.Response, error) {
					return &http.Response{StatusCode: test.status, Body: newBody(test.body), Header: http.Header{}, Request: r}, nil
				})
			})
			found, err := d.List(t.Context())
			g.Expect(found).To(BeEmpty())
			g.Expect(code(err)).To(Equal(test.code), "%v", err)
			g.Expect(err.Error()).NotTo(Or(ContainSubstring(testSecret), ContainSubstring("<html>")))
		})
	}
}

type body struct{ *strings.Reader }

func newBody(s string) body { return body{strings.NewReader(s)} }
func (body) Close() error   { return nil }

// TestAddresses: an elastic IP address with a machine's tags, even if a user set them, is released
// after the machine's instance is gone. Addresses in use, and those without Drover's tags, are left
// alone.
func TestAddresses(t *testing.T) {
	t.Parallel()
	g, ctx := NewWithT(t), t.Context()
	stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
	d := connect(t, stub, nil)
	made, err := d.Ensure(ctx, request("token", nil))
	g.Expect(err).NotTo(HaveOccurred())
	mine := stub.Allocate(made.ID, map[string]string{cloud.TagOwnership: "owner", cloud.TagToken: "token"})
	stub.Allocate("", map[string]string{"Name": "of somebody else"})
	orphan := stub.Allocate("", map[string]string{cloud.TagOwnership: "owner", cloud.TagToken: "other"})

	addresses := func(all []cloud.Resource, err error) (ids []string) {
		g.Expect(err).NotTo(HaveOccurred())
		for _, r := range all {
			if r.Kind == cloud.KindAddress {
				ids = append(ids, r.ID)
			}
		}
		return ids
	}
	refs := []cloud.Reference{{Token: "token", OwnershipID: "owner"}}
	g.Expect(addresses(d.List(ctx))).To(ConsistOf(orphan))
	g.Expect(addresses(d.Describe(ctx, refs))).To(BeEmpty())

	g.Expect(d.Delete(ctx, []cloud.Resource{made})).To(Equal([]error{nil}))
	found, err := d.Describe(ctx, refs)
	g.Expect(addresses(found, err)).To(ConsistOf(mine))
	g.Expect(addresses(d.List(ctx))).To(ConsistOf(mine, orphan))
	address := cloud.Resource{Kind: cloud.KindAddress, ID: mine}
	g.Expect(d.Delete(ctx, []cloud.Resource{address, address})).To(Equal([]error{nil, nil}), "gone already is what was wanted")
	g.Expect(addresses(d.Describe(ctx, refs))).To(BeEmpty())
	g.Expect(addresses(d.List(ctx))).To(ConsistOf(orphan))
}
