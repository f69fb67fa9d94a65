// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/drover-io/drover/cloud/conformance/faults"
)

// Options configure a cloud at its start.
type Options struct {
	// Keys maps the accepted access keys to their secrets.
	Keys map[string]string
	// Partition of AWS; "" means "aws".
	Partition string
	// SessionToken must come with those keys. Empty means that none is needed.
	SessionToken string
	// PageSize limits one page of a listing, whatever the request asks for. 0 means 1,000.
	PageSize int
	// Boot and Stop are how long an instance is pending, and shutting down.
	Boot, Stop time.Duration
	// Latency of each call.
	Latency time.Duration
	// Drain is how long a load balancer shows a target that was deregistered.
	Drain time.Duration
	// Lag is how long reads do not show new resources.
	Lag time.Duration
	// Throttle applies the limits that EC2 publishes.
	Throttle bool
	// Quota is the maximum number of live instances. 0 means any number.
	Quota int
	// Remember is how long the API shows a terminated instance. 0 means forever; EC2 shows it for
	// about an hour.
	Remember time.Duration
	// Keep makes each instance leave a volume behind, as if its DeleteOnTermination had been
	// cleared.
	Keep bool
	// Subnet is the second number of the instances' private addresses, 10.<subnet>.x.y.
	Subnet int
	// Power boots a guest and returns a function that switches it off. It must not block or call
	// the Cloud. If nil, instances run without a guest.
	Power func(Guest) (off func())
}

// Cloud is one region, us-east-1, of one account.
type Cloud struct {
	// URL is the endpoint of all its services.
	URL string

	options Options
	account uint64 // start of all IDs
	beside  *Cloud // another account at the same endpoint, or nil
	// buckets limit calls by verb prefix; resources limit the instances that calls name.
	buckets, resources map[string]*rate.Limiter
	queue              *queue

	mu        sync.Mutex
	keys      map[string]string // access keys with their secrets, including those from STS
	calls     map[string]int    // by operation
	throttled int               // how many of the calls were throttled
	faults    faults.List[Fault]
	short     bool  // of the current call
	birth     Birth // of the instance that the current call creates
	made      int   // counter for IDs
	pages     int   // counter of pages that were not the last
	instances map[string]*instance
	leftovers map[string]*leftover // volumes and network interfaces, by ID
	buried    []*leftover          // deleted leftovers: EC2 shows their tags for a while, the stub forever
	tokens    map[zonalToken]launch
	balancers balancers
	capacity  map[string]int // by zone; a zone without an entry has no limit
	protected map[string]bool
	expired   bool
	zones     []string
}

// New starts a cloud that stops at the end of the test.
func New(t interface{ Cleanup(func()) }, options Options) *Cloud {
	c := &Cloud{
		options: options,
		account: rand.Uint64N(1 << 36),
		buckets: map[string]*rate.Limiter{
			// EC2's user guide, "Request throttling for the Amazon EC2 API".
			"Run": rate.NewLimiter(2, 5), "Describe": rate.NewLimiter(20, 100), "": rate.NewLimiter(5, 100),
		},
		resources: map[string]*rate.Limiter{"RunInstances": rate.NewLimiter(2, 1000), "TerminateInstances": rate.NewLimiter(20, 1000)},
		queue:     newQueue(), keys: map[string]string{}, calls: map[string]int{}, instances: map[string]*instance{},
		leftovers: map[string]*leftover{}, tokens: map[zonalToken]launch{}, balancers: newBalancers(), capacity: map[string]int{},
		protected: map[string]bool{}, zones: zones,
	}
	maps.Copy(c.keys, options.Keys)
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	c.URL = server.URL
	return c
}

// failure is an AWS error response.
type failure struct {
	status        int
	code, message string
}

func refuse(code, format string, args ...any) *failure {
	return &failure{http.StatusBadRequest, code, fmt.Sprintf(format, args...)}
}

// call is one request.
type call struct {
	op      string
	service string
	form    url.Values
	json    []byte // of SQS
}

// ServeHTTP implements http.Handler.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client is gone
	}
	in, fail := parse(r, body)
	if fail == nil {
		if other := c.other(r); other != nil {
			c = other
		}
		fail = c.authenticate(r, in, body)
	}
	faults.Pause(r.Context(), c.options.Latency)
	var f Fault
	if fail == nil {
		f, fail = c.admit(in)
	}
	if fail != nil {
		write(w, in, nil, fail, false)
		return
	}
	if f.Late {
		time.AfterFunc(f.Delay, func() { _, _ = c.serve(context.Background(), in, f) })
		panic(http.ErrAbortHandler)
	}
	var out any
	if !f.After {
		faults.Pause(r.Context(), f.Delay)
	}
	if f.After || !f.instead() {
		out, fail = c.serve(r.Context(), in, f)
	}
	if f.After {
		faults.Pause(r.Context(), f.Delay)
	}
	f.answer(w, in, out, fail)
}

// admit counts a call and returns its fault, or the throttling error.
func (c *Cloud) admit(in call) (Fault, *failure) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[in.op]++
	if fail := c.throttle(in); fail != nil {
		c.throttled++
		return Fault{}, fail
	}
	return c.faults.Draw(in.op), nil
}

// parse detects the protocol: Systems Manager and SQS use JSON, the other services use forms.
func parse(r *http.Request, body []byte) (call, *failure) {
	if target, ok := strings.CutPrefix(r.Header.Get("X-Amz-Target"), "AmazonSSM."); ok {
		name, fail := parameterName(body)
		return call{op: target, service: "ssm", form: url.Values{"Name": {name}}}, fail
	}
	if target, ok := strings.CutPrefix(r.Header.Get("X-Amz-Target"), "AmazonSQS."); ok {
		return call{op: target, service: "sqs", json: body}, nil
	}
	form, err := url.ParseQuery(string(body))
	if err != nil || form.Get("Action") == "" {
		return call{service: "ec2"}, refuse("MissingAction", "The request must contain the parameter Action")
	}
	in := call{op: form.Get("Action"), service: "ec2", form: form}
	if strings.HasPrefix(in.op, "AssumeRole") || in.op == getCallerIdentity {
		in.service = "sts"
	}
	if form.Get("Version") == balancingVersion {
		in.service = balancing
	}
	return in, nil
}

// serve executes a call, whether or not the client still waits.
func (c *Cloud) serve(ctx context.Context, in call, f Fault) (any, *failure) {
	if in.service == "sqs" {
		return c.serveQueue(ctx, in)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.short, c.birth = f.Short, f.Birth
	calls := map[string]func(url.Values) (any, *failure){
		"RunInstances":              c.runInstances,
		"DescribeInstances":         c.describeInstances,
		"TerminateInstances":        c.terminateInstances,
		"GetConsoleOutput":          c.getConsoleOutput,
		"DescribeInstanceStatus":    c.describeInstanceStatus,
		"DescribeVolumes":           c.describeVolumes,
		"DescribeNetworkInterfaces": c.describeNetworkInterfaces,
		"DescribeAddresses":         c.describeAddresses,
		"DescribeTags":              c.describeTags,
		"CreateTags":                c.createTags,
		"DeleteTags":                c.deleteTags,
		"ReleaseAddress": func(form url.Values) (any, *failure) {
			return c.deleteLeftover(form.Get("AllocationId"), "InvalidAllocationID", "InvalidIPAddress.InUse")
		},
		"DeleteVolume": func(form url.Values) (any, *failure) {
			return c.deleteLeftover(form.Get("VolumeId"), "InvalidVolume", "VolumeInUse")
		},
		"DeleteNetworkInterface": func(form url.Values) (any, *failure) {
			return c.deleteLeftover(form.Get("NetworkInterfaceId"), "InvalidNetworkInterfaceID", "InvalidNetworkInterface.InUse")
		},
		"DescribeImages":            c.describeImages,
		"DescribeInstanceTypes":     c.describeInstanceTypes,
		"DescribeSubnets":           c.describeSubnets,
		"DescribeSecurityGroups":    c.describeSecurityGroups,
		"DescribeAvailabilityZones": c.describeAvailabilityZones,
		"GetParameter":              c.getParameter,
		"AssumeRole":                c.assumeRole,
		"AssumeRoleWithWebIdentity": c.assumeRole,
		getCallerIdentity:           c.callerIdentity,

		"CreateSecurityGroup":           c.createSecurityGroup,
		"AuthorizeSecurityGroupIngress": c.authorizeSecurityGroupIngress,
		"DeleteSecurityGroup":           c.deleteSecurityGroup,
	}
	if in.service == balancing {
		calls = c.balancingCalls()
	}
	handle, ok := calls[in.op]
	if !ok {
		return nil, refuse("InvalidAction", "The action %s is not valid for this web service.", in.op)
	}
	return handle(in.form)
}

func (c *Cloud) throttle(in call) *failure {
	if !c.options.Throttle || in.service != "ec2" {
		return nil
	}
	bucket := c.buckets[""]
	for verb, b := range c.buckets {
		if verb != "" && strings.HasPrefix(in.op, verb) {
			bucket = b
		}
	}
	of, instances := c.resources[in.op], max(len(list(in.form, "InstanceId")), 1) // a create asks for one
	if bucket.Allow() && (of == nil || of.AllowN(time.Now(), instances)) {
		return nil
	}
	return &failure{http.StatusServiceUnavailable, "RequestLimitExceeded", "Request limit exceeded."}
}

// Beside makes c's endpoint serve another account, too. The key that signs a call selects the
// account.
func (c *Cloud) Beside(other *Cloud) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beside = other
}

// Expire invalidates all keys.
func (c *Cloud) Expire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expired = true
}

// Announce schedules an EC2 event in 2030 for an instance.
func (c *Cloud) Announce(id, code, words string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[id].event = &eventItem{Code: code, Description: words, NotBefore: "2030-01-02T03:04:05Z"}
}

// Print sets an instance's console output. Without Nitro, it is available only to requests that do
// not ask for the latest output.
func (c *Cloud) Print(id string, nitro bool, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[id].console, c.instances[id].xen = text, !nitro
}

// Impair makes an instance's status check fail.
func (c *Cloud) Impair(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[id].impaired = true
}

// SetKeys changes Options.Keys.
func (c *Cloud) SetKeys(keys map[string]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys = maps.Clone(keys)
}

// SetPageSize changes Options.PageSize.
func (c *Cloud) SetPageSize(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.PageSize = n
}

// SetCapacity sets how many more instances a zone can hold. A value below 0 removes the limit.
func (c *Cloud) SetCapacity(zone string, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.capacity[zone] = n; n < 0 {
		delete(c.capacity, zone)
	}
}

// SetQuota sets the maximum number of live instances. 0 removes the limit.
func (c *Cloud) SetQuota(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Quota = n
}

// SetZones changes the zones that the region reports. us-east-1a to us-east-1c have subnets.
func (c *Cloud) SetZones(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.zones = names
}

// SetLag changes Options.Lag.
func (c *Cloud) SetLag(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Lag = d
}

// SetPower changes Options.Power for new instances.
func (c *Cloud) SetPower(power func(Guest) (off func())) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Power = power
}

// SetKeep changes Options.Keep for new instances.
func (c *Cloud) SetKeep(keep bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Keep = keep
}

// SetRemember changes Options.Remember.
func (c *Cloud) SetRemember(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.options.Remember = d
}

// Interrupt terminates a spot instance as AWS does when it takes one back.
func (c *Cloud) Interrupt(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.instances[id].end("Server.SpotInstanceTermination: Spot instance termination")
}

// Vanish ends an instance and hides it from the API at once, even as terminated.
func (c *Cloud) Vanish(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.instances[id]
	i.end("it vanished")
	i.vanished = true
}

// Protect enables an instance's termination protection, or a load balancer's deletion protection,
// until undo is called.
func (c *Cloud) Protect(id string) (undo func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.protected[id] = true
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.protected, id)
	}
}

// Calls returns the number of calls by operation.
func (c *Cloud) Calls() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[string]int{}
	for op, n := range c.calls {
		all[op] = n
	}
	return all
}

// Throttled returns how many calls were throttled.
func (c *Cloud) Throttled() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.throttled
}

// Left returns the IDs of all resources with the tag, except terminated instances.
func (c *Cloud) Left(key, value string) (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tick()
	for id, i := range c.instances {
		if i.tags[key] == value && c.stateOf(i) != terminated {
			ids = append(ids, id)
		}
	}
	for id, l := range c.leftovers {
		if l.tags[key] == value {
			ids = append(ids, id)
		}
	}
	return append(ids, c.balancers.left(key, value)...)
}

// Launch creates an instance outside the API.
func (c *Cloud) Launch(tags map[string]string) (id string, alive func() bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.newInstance("us-east-1a", "t3.small", "ami-0a", tags)
	return i.id, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.stateOf(i) == running || c.stateOf(i) == pending
	}
}

// write sends the response in the service's format, or half of it.
func write(w http.ResponseWriter, in call, out any, fail *failure, half bool) {
	var body bytes.Buffer
	status := http.StatusOK
	if fail != nil {
		status = fail.status
	}
	kind := "text/xml;charset=UTF-8"
	switch in.service {
	case "ssm":
		kind = "application/x-amz-json-1.1"
	case "sqs":
		kind = "application/x-amz-json-1.0"
	}
	encode(&body, in, out, fail)
	if half {
		body.Truncate(body.Len() / 2)
	}
	sqsHeader(w.Header(), in, fail)
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // the client may be gone
}
