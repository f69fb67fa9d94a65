// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// balancing is Elastic Load Balancing's name in signatures and ARNs, balancingVersion the version
// of its API for Network Load Balancers.
const (
	balancing        = "elasticloadbalancing"
	balancingVersion = "2015-12-01"
)

// balancerName is what a load balancer or a target group may be called.
var balancerName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?$`)

// loadBalancer is a Network Load Balancer, with its listeners.
type loadBalancer struct {
	arn, name string
	request   [sha256.Size]byte
	made      time.Time
	vpc       string
	scheme    string
	groups    []string
	zones     []balancerZone
	tags      map[string]string
	listeners map[string]*listener // by ARN
}

type listener struct {
	arn, targetGroup string
	request          [sha256.Size]byte
	port             int
	tags             map[string]string
}

type targetGroup struct {
	arn, name string
	request   [sha256.Size]byte
	made      time.Time
	port      int
	vpc       string
	tags      map[string]string
	targets   map[string]target // by IP address
}

// target is registered until draining, and shown as draining for Options.Drain after that.
type target struct{ since, draining time.Time }

// securityGroup is a group that somebody made by the API.
type securityGroup struct {
	groupItem
	made  time.Time
	rules map[string]bool
}

// balancers are the region's load balancers with all that belongs to them, each by ARN or ID.
type balancers struct {
	loadBalancers map[string]*loadBalancer
	targetGroups  map[string]*targetGroup
	groups        map[string]*securityGroup
	// held are groups that the network interfaces of a deleted load balancer hold, until then.
	held map[string]time.Time
	made int // load balancers ever made
}

func newBalancers() balancers {
	return balancers{
		loadBalancers: map[string]*loadBalancer{}, targetGroups: map[string]*targetGroup{},
		groups: map[string]*securityGroup{}, held: map[string]time.Time{},
	}
}

// BalancersMade returns how many load balancers were ever made.
func (c *Cloud) BalancersMade() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.balancers.made
}

// RemoveBalancers deletes all load balancers and leaves their other parts, as a person may do.
func (c *Cloud) RemoveBalancers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.balancers.loadBalancers)
}

// UntagBalancer takes a tag off a part of a load balancer, as a person may do.
func (c *Cloud) UntagBalancer(id, key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if lb := c.balancers.loadBalancers[id]; lb != nil {
		delete(lb.tags, key)
	}
	if group := c.balancers.targetGroups[id]; group != nil {
		delete(group.tags, key)
	}
	if group := c.balancers.groups[id]; group != nil {
		delete(group.tags, key)
		group.Tags = toTags(group.tags)
	}
}

// left returns the ARNs and IDs of all parts of load balancers that have the tag.
func (b *balancers) left(key, value string) (ids []string) {
	for arn, lb := range b.loadBalancers {
		if lb.tags[key] == value {
			ids = append(ids, arn)
		}
	}
	for arn, group := range b.targetGroups {
		if group.tags[key] == value {
			ids = append(ids, arn)
		}
	}
	for id, group := range b.groups {
		if group.tags[key] == value {
			ids = append(ids, id)
		}
	}
	return ids
}

// The answers of Elastic Load Balancing. Its API Reference describes each.

type loadBalancersAnswer struct {
	LoadBalancers []loadBalancerItem `xml:"LoadBalancers>member"`
}

type loadBalancerItem struct {
	ARN    string         `xml:"LoadBalancerArn"`
	DNS    string         `xml:"DNSName"`
	Name   string         `xml:"LoadBalancerName"`
	Scheme string         `xml:"Scheme"`
	VPC    string         `xml:"VpcId"`
	State  string         `xml:"State>Code"`
	Type   string         `xml:"Type"`
	Made   string         `xml:"CreatedTime"`
	Groups []string       `xml:"SecurityGroups>member"`
	Zones  []balancerZone `xml:"AvailabilityZones>member"`
}

type balancerZone struct {
	Zone   string `xml:"ZoneName"`
	Subnet string `xml:"SubnetId"`
}

type targetGroupsAnswer struct {
	TargetGroups []targetGroupItem `xml:"TargetGroups>member"`
}

type targetGroupItem struct {
	ARN           string   `xml:"TargetGroupArn"`
	Name          string   `xml:"TargetGroupName"`
	Protocol      string   `xml:"Protocol"`
	Port          int      `xml:"Port"`
	VPC           string   `xml:"VpcId"`
	TargetType    string   `xml:"TargetType"`
	LoadBalancers []string `xml:"LoadBalancerArns>member"`
}

type listenersAnswer struct {
	Listeners []listenerItem `xml:"Listeners>member"`
}

type listenerItem struct {
	ARN          string       `xml:"ListenerArn"`
	LoadBalancer string       `xml:"LoadBalancerArn"`
	Port         int          `xml:"Port"`
	Protocol     string       `xml:"Protocol"`
	Actions      []actionItem `xml:"DefaultActions>member"`
}

type actionItem struct {
	Type        string `xml:"Type"`
	TargetGroup string `xml:"TargetGroupArn"`
}

type healthAnswer struct {
	Targets []healthItem `xml:"TargetHealthDescriptions>member"`
}

type healthItem struct {
	IP     string `xml:"Target>Id"`
	Port   int    `xml:"Target>Port"`
	State  string `xml:"TargetHealth>State"`
	Reason string `xml:"TargetHealth>Reason,omitempty"`
}

type balancerTagsAnswer struct {
	Tags []balancerTags `xml:"TagDescriptions>member"`
}

type balancerTags struct {
	ARN  string    `xml:"ResourceArn"`
	Tags []elbItem `xml:"Tags>member"`
}

type elbItem struct{ Key, Value string }

type groupMadeResponse struct {
	ID string `xml:"groupId"`
}

// balancingCalls are the operations of Elastic Load Balancing.
func (c *Cloud) balancingCalls() map[string]func(url.Values) (any, *failure) {
	return map[string]func(url.Values) (any, *failure){
		"CreateLoadBalancer":    c.createLoadBalancer,
		"CreateTargetGroup":     c.createTargetGroup,
		"CreateListener":        c.createListener,
		"RegisterTargets":       c.registerTargets,
		"DeregisterTargets":     c.deregisterTargets,
		"DescribeLoadBalancers": c.describeLoadBalancers,
		"DescribeTargetGroups":  c.describeTargetGroups,
		"DescribeListeners":     c.describeListeners,
		"DescribeTargetHealth":  c.describeTargetHealth,
		"DescribeTags":          c.describeBalancerTags,
		"DeleteLoadBalancer":    c.deleteLoadBalancer,
		"DeleteTargetGroup":     c.deleteTargetGroup,
	}
}

// members returns the parameters "name.member.N".
func members(form url.Values, name string) []string { return list(form, name+".member") }

func memberTags(form url.Values) map[string]string {
	tags := map[string]string{}
	for _, tag := range tagged(form, "Tags.member") {
		tags[tag.Get("Key")] = tag.Get("Value")
	}
	return tags
}

// arn returns a new ARN, whose last part is never used again.
func (c *Cloud) arn(kind, name string) string {
	return fmt.Sprintf("arn:%s:%s:us-east-1:%s:%s/%s/%s", cmp.Or(c.options.Partition, "aws"), balancing, c.AccountID(), kind, name,
		c.number("")[9:])
}

func (c *Cloud) createLoadBalancer(form url.Values) (any, *failure) {
	name := form.Get("Name")
	if !balancerName.MatchString(name) || strings.HasPrefix(name, "internal-") {
		return nil, refuse("ValidationError", "Load balancer name '%s' must be 1 to 32 characters, alphanumeric or hyphens", name)
	}
	if form.Get("Type") != "network" {
		return nil, refuse("ValidationError", "The stand-in has network load balancers only")
	}
	for _, lb := range c.balancers.loadBalancers {
		switch {
		case lb.name == name && lb.request == fingerprint(form):
			return loadBalancersAnswer{[]loadBalancerItem{c.loadBalancerItem(lb)}}, nil
		case lb.name == name:
			return nil, refuse("DuplicateLoadBalancerName", "A load balancer with the same name '%s' exists, but with different settings", name)
		}
	}
	lb := &loadBalancer{
		name: name, request: fingerprint(form), made: time.Now(), tags: memberTags(form), scheme: cmp.Or(form.Get("Scheme"), "internet-facing"),
		groups: members(form, "SecurityGroups"), listeners: map[string]*listener{},
	}
	zones := map[string]bool{}
	for _, id := range members(form, "Subnets") {
		subnet, fail := findSubnet(id)
		switch {
		case fail != nil:
			return nil, refuse("SubnetNotFound", "The subnet ID '%s' does not exist", id)
		case lb.vpc != "" && lb.vpc != subnet.VPC:
			return nil, refuse("InvalidConfigurationRequest", "All subnets must belong to the same VPC: '%s'", lb.vpc)
		case zones[subnet.Zone]:
			return nil, refuse("InvalidConfigurationRequest", "A load balancer cannot be attached to multiple subnets in the same Availability Zone")
		}
		lb.vpc, zones[subnet.Zone] = subnet.VPC, true
		lb.zones = append(lb.zones, balancerZone{subnet.Zone, id})
	}
	if lb.vpc == "" {
		return nil, refuse("ValidationError", "At least one subnet must be specified")
	}
	for _, id := range lb.groups {
		if group := c.securityGroupOf(id); group == nil || group.VPC != lb.vpc {
			return nil, refuse("InvalidSecurityGroup", "One or more security groups are invalid: '%s'", id)
		}
	}
	lb.arn = c.arn("loadbalancer/net", name)
	c.balancers.loadBalancers[lb.arn] = lb
	c.balancers.made++
	return loadBalancersAnswer{[]loadBalancerItem{c.loadBalancerItem(lb)}}, nil
}

// securityGroupOf returns a group of the catalog or one that was made.
func (c *Cloud) securityGroupOf(id string) *groupItem {
	if made := c.balancers.groups[id]; made != nil {
		return &made.groupItem
	}
	return findGroup(id)
}

func (c *Cloud) loadBalancerItem(lb *loadBalancer) loadBalancerItem {
	_, id, _ := strings.Cut(lb.arn, "loadbalancer/net/"+lb.name+"/")
	return loadBalancerItem{
		ARN: lb.arn, Name: lb.name, DNS: lb.name + "-" + id + ".elb.us-east-1.amazonaws.com", Scheme: lb.scheme, VPC: lb.vpc,
		State: c.balancerState(lb), Type: "network", Made: lb.made.UTC().Format(time.RFC3339), Groups: lb.groups, Zones: lb.zones,
	}
}

// balancerState is provisioning as long as an instance is pending.
func (c *Cloud) balancerState(lb *loadBalancer) string {
	if time.Since(lb.made) < c.options.Boot {
		return "provisioning"
	}
	return "active"
}

func (c *Cloud) createTargetGroup(form url.Values) (any, *failure) {
	name, request := form.Get("Name"), fingerprint(form)
	port, err := strconv.Atoi(form.Get("Port"))
	if !balancerName.MatchString(name) || err != nil {
		return nil, refuse("ValidationError", "Target group name '%s' must be 1 to 32 characters, alphanumeric or hyphens, and it must have a port", name)
	}
	for _, group := range c.balancers.targetGroups {
		switch {
		case group.name == name && group.request == request:
			return targetGroupsAnswer{[]targetGroupItem{c.targetGroupItem(group)}}, nil
		case group.name == name:
			return nil, refuse("DuplicateTargetGroupName", "A target group with the same name '%s' exists, but with different settings", name)
		}
	}
	if !slices.ContainsFunc(subnets, func(s subnetItem) bool { return s.VPC == form.Get("VpcId") }) {
		return nil, refuse("ValidationError", "The VPC ID '%s' is not found", form.Get("VpcId"))
	}
	group := &targetGroup{arn: c.arn("targetgroup", name), name: name, request: request, made: time.Now(), port: port, vpc: form.Get("VpcId"),
		tags: memberTags(form), targets: map[string]target{}}
	c.balancers.targetGroups[group.arn] = group
	return targetGroupsAnswer{[]targetGroupItem{c.targetGroupItem(group)}}, nil
}

func (c *Cloud) targetGroupItem(group *targetGroup) targetGroupItem {
	return targetGroupItem{ARN: group.arn, Name: group.name, Protocol: "TCP", Port: group.port, VPC: group.vpc, TargetType: "ip",
		LoadBalancers: c.users(group.arn)}
}

// users returns the load balancers that have a listener with the target group.
func (c *Cloud) users(targetGroup string) (arns []string) {
	for arn, lb := range c.balancers.loadBalancers {
		for _, l := range lb.listeners {
			if l.targetGroup == targetGroup {
				arns = append(arns, arn)
			}
		}
	}
	return arns
}

func (c *Cloud) createListener(form url.Values) (any, *failure) {
	lb := c.balancers.loadBalancers[form.Get("LoadBalancerArn")]
	if lb == nil {
		return nil, refuse("LoadBalancerNotFound", "One or more load balancers not found")
	}
	action := tagged(form, "DefaultActions.member")
	if len(action) != 1 || c.balancers.targetGroups[action[0].Get("TargetGroupArn")] == nil {
		return nil, refuse("TargetGroupNotFound", "One or more target groups not found")
	}
	port, _ := strconv.Atoi(form.Get("Port"))
	for _, l := range lb.listeners {
		switch {
		case l.port == port && l.request == fingerprint(form):
			return listenersAnswer{[]listenerItem{lb.listenerItem(l)}}, nil
		case l.port == port:
			return nil, refuse("DuplicateListener", "A listener already exists on this port for this load balancer '%s'", lb.arn)
		}
	}
	arn := strings.Replace(lb.arn, ":loadbalancer/", ":listener/", 1) + "/" + c.number("")[9:]
	l := &listener{arn: arn, targetGroup: action[0].Get("TargetGroupArn"), request: fingerprint(form), port: port, tags: memberTags(form)}
	lb.listeners[arn] = l
	return listenersAnswer{[]listenerItem{lb.listenerItem(l)}}, nil
}

func (lb *loadBalancer) listenerItem(l *listener) listenerItem {
	return listenerItem{ARN: l.arn, LoadBalancer: lb.arn, Port: l.port, Protocol: "TCP", Actions: []actionItem{{"forward", l.targetGroup}}}
}

func (c *Cloud) targetGroupOf(form url.Values) (*targetGroup, *failure) {
	group := c.balancers.targetGroups[form.Get("TargetGroupArn")]
	if group == nil {
		return nil, refuse("TargetGroupNotFound", "One or more target groups not found")
	}
	return group, nil
}

func (c *Cloud) registerTargets(form url.Values) (any, *failure) {
	group, fail := c.targetGroupOf(form)
	if fail != nil {
		return nil, fail
	}
	for _, t := range tagged(form, "Targets.member") {
		ip := t.Get("Id")
		if now, ok := group.targets[ip]; !ok || !now.draining.IsZero() {
			group.targets[ip] = target{since: time.Now()}
		}
	}
	return struct{}{}, nil
}

// deregisterTargets succeeds for a target that is not registered, as AWS's does.
func (c *Cloud) deregisterTargets(form url.Values) (any, *failure) {
	group, fail := c.targetGroupOf(form)
	if fail != nil {
		return nil, fail
	}
	for _, t := range tagged(form, "Targets.member") {
		if now, ok := group.targets[t.Get("Id")]; ok && now.draining.IsZero() {
			now.draining = time.Now()
			group.targets[t.Get("Id")] = now
		}
	}
	return struct{}{}, nil
}

// named returns those of the resources that the form names, by ARN or by name, or all. Like AWS, it
// refuses all if one is missing.
func named[T any](c *Cloud, form url.Values, arns, missing string, all map[string]T,
	of func(T) (name string, made time.Time)) (found []T, fail *failure) {
	wanted, names := members(form, arns), members(form, "Names")
	left := len(wanted) + len(names)
	for _, arn := range slices.Sorted(maps.Keys(all)) {
		name, made := of(all[arn])
		isNamed := slices.Contains(wanted, arn) || slices.Contains(names, name)
		if time.Since(made) < c.options.Lag || len(wanted)+len(names) > 0 && !isNamed {
			continue
		}
		left--
		found = append(found, all[arn])
	}
	if left > 0 {
		return nil, refuse(missing, "One or more of them not found")
	}
	return found, nil
}

func (c *Cloud) describeLoadBalancers(form url.Values) (any, *failure) {
	found, fail := named(c, form, "LoadBalancerArns", "LoadBalancerNotFound", c.balancers.loadBalancers,
		func(lb *loadBalancer) (string, time.Time) { return lb.name, lb.made })
	var out loadBalancersAnswer
	for _, lb := range found {
		out.LoadBalancers = append(out.LoadBalancers, c.loadBalancerItem(lb))
	}
	return out, fail
}

func (c *Cloud) describeTargetGroups(form url.Values) (any, *failure) {
	found, fail := named(c, form, "TargetGroupArns", "TargetGroupNotFound", c.balancers.targetGroups,
		func(group *targetGroup) (string, time.Time) { return group.name, group.made })
	var out targetGroupsAnswer
	for _, group := range found {
		out.TargetGroups = append(out.TargetGroups, c.targetGroupItem(group))
	}
	return out, fail
}

func (c *Cloud) describeListeners(form url.Values) (any, *failure) {
	lb := c.balancers.loadBalancers[form.Get("LoadBalancerArn")]
	if lb == nil {
		return nil, refuse("LoadBalancerNotFound", "One or more load balancers not found")
	}
	var out listenersAnswer
	for _, l := range lb.listeners {
		out.Listeners = append(out.Listeners, lb.listenerItem(l))
	}
	return out, nil
}

// describeTargetHealth: a target is unused without a listener, initial as long as an instance is
// pending, and healthy if a running instance has its address.
func (c *Cloud) describeTargetHealth(form url.Values) (any, *failure) {
	group, fail := c.targetGroupOf(form)
	if fail != nil {
		return nil, fail
	}
	var out healthAnswer
	isUsed := len(c.users(group.arn)) > 0
	for _, ip := range slices.Sorted(maps.Keys(group.targets)) {
		t, item := group.targets[ip], healthItem{IP: ip, Port: group.port}
		switch {
		case !t.draining.IsZero() && time.Since(t.draining) >= c.options.Drain:
			delete(group.targets, ip)
			continue
		case !t.draining.IsZero():
			item.State, item.Reason = "draining", "Target.DeregistrationInProgress"
		case !isUsed:
			item.State, item.Reason = "unused", "Target.NotInUse"
		case time.Since(t.since) < c.options.Boot:
			item.State, item.Reason = "initial", "Elb.RegistrationInProgress"
		case c.answers(ip):
			item.State = "healthy"
		default:
			item.State, item.Reason = "unhealthy", "Target.Timeout"
		}
		out.Targets = append(out.Targets, item)
	}
	return out, nil
}

// answers reports whether a running instance has the address.
func (c *Cloud) answers(ip string) bool {
	for _, i := range c.instances {
		if i.ip == ip && c.stateOf(i) == running {
			return true
		}
	}
	return false
}

// describeBalancerTags takes 20 ARNs at most.
func (c *Cloud) describeBalancerTags(form url.Values) (any, *failure) {
	arns := members(form, "ResourceArns")
	if len(arns) > 20 {
		return nil, refuse("ValidationError", "Up to 20 resource ARNs can be specified in a single call")
	}
	var out balancerTagsAnswer
	for _, arn := range arns {
		var tags map[string]string
		if lb := c.balancers.loadBalancers[arn]; lb != nil {
			tags = lb.tags
		} else if group := c.balancers.targetGroups[arn]; group != nil {
			tags = group.tags
		} else if strings.Contains(arn, ":targetgroup/") {
			return nil, refuse("TargetGroupNotFound", "One or more target groups not found")
		} else {
			return nil, refuse("LoadBalancerNotFound", "One or more load balancers not found")
		}
		item := balancerTags{ARN: arn}
		for _, key := range slices.Sorted(maps.Keys(tags)) {
			item.Tags = append(item.Tags, elbItem{key, tags[key]})
		}
		out.Tags = append(out.Tags, item)
	}
	return out, nil
}

// deleteLoadBalancer succeeds for one that is gone. Its network interfaces hold its groups until
// Options.Stop has passed.
func (c *Cloud) deleteLoadBalancer(form url.Values) (any, *failure) {
	arn := form.Get("LoadBalancerArn")
	if c.protected[arn] { // https://github.com/aws-cloudformation/rain/issues/187
		return nil, refuse("OperationNotPermitted", "Load balancer '%s' cannot be deleted because deletion protection is enabled", arn)
	}
	if lb := c.balancers.loadBalancers[arn]; lb != nil {
		for _, group := range lb.groups {
			c.balancers.held[group] = time.Now().Add(c.options.Stop)
		}
		delete(c.balancers.loadBalancers, arn)
	}
	return struct{}{}, nil
}

// deleteTargetGroup succeeds for one that is gone.
func (c *Cloud) deleteTargetGroup(form url.Values) (any, *failure) {
	arn := form.Get("TargetGroupArn")
	if len(c.users(arn)) > 0 {
		return nil, refuse("ResourceInUse", "Target group '%s' is currently in use by a listener or a rule", arn)
	}
	delete(c.balancers.targetGroups, arn)
	return struct{}{}, nil
}

func (c *Cloud) createSecurityGroup(form url.Values) (any, *failure) {
	name, vpc := form.Get("GroupName"), form.Get("VpcId")
	if name == "" || form.Get("GroupDescription") == "" {
		return nil, refuse("MissingParameter", "The request must contain the parameters GroupName and GroupDescription")
	}
	if !slices.ContainsFunc(subnets, func(s subnetItem) bool { return s.VPC == vpc }) {
		return nil, refuse("InvalidVpcID.NotFound", "The vpc ID '%s' does not exist", vpc)
	}
	for _, group := range c.allGroups(true) {
		if group.Name == name && group.VPC == vpc {
			return nil, refuse("InvalidGroup.Duplicate", "The security group '%s' already exists for VPC '%s'", name, vpc)
		}
	}
	group := &securityGroup{groupItem: groupItem{ID: c.number("sg-"), Name: name, VPC: vpc, tags: map[string]string{}}, made: time.Now(),
		rules: map[string]bool{}}
	for _, spec := range tagged(form, "TagSpecification") {
		for _, tag := range tagged(spec, "Tag") {
			group.tags[tag.Get("Key")] = tag.Get("Value")
		}
	}
	c.balancers.groups[group.ID] = group
	return groupMadeResponse{ID: group.ID}, nil
}

// allGroups returns the groups of the catalog and those that were made; without new: those that
// reads show already.
func (c *Cloud) allGroups(withNew bool) []groupItem {
	all := slices.Clone(groups)
	for _, id := range slices.Sorted(maps.Keys(c.balancers.groups)) {
		if group := c.balancers.groups[id]; withNew || time.Since(group.made) >= c.options.Lag {
			item := group.groupItem
			item.Tags = toTags(item.tags)
			all = append(all, item)
		}
	}
	return all
}

func (c *Cloud) authorizeSecurityGroupIngress(form url.Values) (any, *failure) {
	group := c.balancers.groups[form.Get("GroupId")]
	if group == nil {
		return nil, refuse("InvalidGroup.NotFound", "The security group '%s' does not exist", form.Get("GroupId"))
	}
	rules := url.Values{}
	for key, values := range form {
		if strings.HasPrefix(key, "IpPermissions.") {
			rules[key] = values
		}
	}
	if len(rules) == 0 {
		return nil, refuse("MissingParameter", "The request must contain the parameter IpPermissions")
	}
	if group.rules[rules.Encode()] {
		return nil, refuse("InvalidPermission.Duplicate", "the specified rule already exists")
	}
	group.rules[rules.Encode()] = true
	return doneResponse{Done: true}, nil
}

func (c *Cloud) deleteSecurityGroup(form url.Values) (any, *failure) {
	id := form.Get("GroupId")
	group := c.balancers.groups[id]
	if group == nil {
		return nil, refuse("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
	}
	inUse := time.Now().Before(c.balancers.held[id])
	for _, lb := range c.balancers.loadBalancers {
		inUse = inUse || slices.Contains(lb.groups, id)
	}
	if inUse {
		return nil, refuse("DependencyViolation", "resource %s has a dependent object", id)
	}
	delete(c.balancers.groups, id)
	c.buried = append(c.buried, &leftover{id: id, made: group.made, tags: group.tags})
	return doneResponse{Done: true}, nil
}
