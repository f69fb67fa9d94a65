// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	elbtypes "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// A load balancer is a Network Load Balancer with a listener, a target group of IP addresses, and a
// security group. All have the token in their tags, and a name that is made from it: Elastic Load
// Balancing creates at most one of a name, and finds by name, not by tag. The security group is
// made first and deleted last. So EC2's reads, which a machine needs anyway, tell whether anything
// is there, and an account without load balancers makes no call to Elastic Load Balancing.

// Health checks of the API servers: a target is unhealthy 20 seconds after its last good answer.
// Elastic Load Balancing does not verify the certificate.
const (
	checkPath      = "/readyz"
	checkSeconds   = 10
	timeoutSeconds = 5
	checkThreshold = 2
)

// Error codes of load balancers' parts that the driver handles itself.
const (
	duplicateGroup        = "InvalidGroup.Duplicate"
	duplicateRule         = "InvalidPermission.Duplicate"
	duplicateTargetGroup  = "DuplicateTargetGroupName"
	duplicateLoadBalancer = "DuplicateLoadBalancerName"
	resourceInUse         = "ResourceInUse"
	dependencyViolation   = "DependencyViolation"
)

// groupName is EC2's filter of security groups by their name.
const groupName = "group-name"

// balancer is what the driver knows of a load balancer. IDs and ARNs are "" for a part that is not
// there, or not known.
type balancer struct {
	token, owner string
	group        string // ID of the security group
	loadBalancer string // ARN, as those that follow
	targetGroup  string
	listener     string
	address      string // DNS name
	zones        []string
	port         int32 // of the listener
	created      time.Time
	state        elbtypes.LoadBalancerStateEnum
	reason       string
	targets      map[string]bool // health by address, without those that drain
	noted        time.Time       // when the driver first heard of it
	changes      int             // counts the driver's own changes, so that an older read does not undo them
}

// balancers are the load balancers that the driver knows.
type balancers struct{ driverkit.Known[balancer] }

func (b *balancers) get(token string) balancer {
	is, _ := b.Get(token)
	return is
}

// note records that a load balancer may exist.
func (b *balancers) note(token, owner string) {
	b.Change(token, func(is balancer, known bool) (balancer, bool) {
		if !known {
			is = balancer{token: token, owner: owner, noted: time.Now()}
		}
		return is, true
	})
}

// changed records a load balancer after a change by the driver; one without parts must be read
// again.
func (b *balancers) changed(is balancer) {
	b.Change(is.token, func(before balancer, _ bool) (balancer, bool) {
		is.changes, is.noted = before.changes+1, cmp.Or(before.noted, time.Now())
		return is, true
	})
}

// saw records what a read has shown, unless the driver changed the load balancer meanwhile. It
// forgets one that has no parts.
func (b *balancers) saw(is balancer) {
	b.Change(is.token, func(before balancer, known bool) (balancer, bool) {
		is.noted = cmp.Or(before.noted, time.Now())
		switch {
		case known && before.changes != is.changes:
			return before, true
		case is.exists():
			return is, true
		}
		// A create without an answer may have made it.
		return balancer{token: is.token, owner: is.owner, changes: is.changes, noted: is.noted}, known && time.Since(is.noted) < consistency
	})
}

// all returns what is known, by token.
func (b *balancers) all() []balancer {
	return slices.SortedFunc(maps.Values(b.All()), func(a, b balancer) int { return strings.Compare(a.token, b.token) })
}

// knows reports whether one of the tokens is that of a known load balancer.
func (b *balancers) knows(tokens map[string]bool) bool {
	return slices.ContainsFunc(b.all(), func(is balancer) bool { return tokens[is.token] })
}

func (b balancer) exists() bool { return b.group != "" || b.loadBalancer != "" || b.targetGroup != "" }

// nameOf returns the name of a load balancer and its parts: 31 of the 32 characters that Elastic
// Load Balancing takes.
func nameOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return fmt.Sprintf("drover-%x", sum[:12])
}

// EnsureBalancer implements cloud.Balancer. It makes all parts in one attempt: each call is
// idempotent by the part's name, so the next attempt repeats those whose answer was lost.
func (d *driver) EnsureBalancer(ctx context.Context, req cloud.BalancerRequest) (cloud.Resource, error) {
	b := d.balancers.get(req.Token)
	if b.loadBalancer == "" {
		d.balancers.note(req.Token, req.OwnershipID)
		find := d.makeBalancer
		if req.Recorded {
			find = d.findBalancer
		}
		var err error
		if b, err = find(ctx, req); err != nil {
			return cloud.Resource{}, err
		}
	}
	if b.owner != req.OwnershipID {
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict, "load balancer %s has the ownership ID %q", nameOf(req.Token), b.owner)
	}
	if err := d.adjust(ctx, req, &b); err != nil {
		d.balancers.changed(balancer{token: req.Token, owner: req.OwnershipID})
		return cloud.Resource{}, err
	}
	d.balancers.changed(b)
	return b.resource(), nil
}

// findBalancer reads a load balancer that was made before, perhaps by another process.
func (d *driver) findBalancer(ctx context.Context, req cloud.BalancerRequest) (balancer, error) {
	found, err := d.readBalancers(ctx, map[string]bool{req.Token: true}, nil)
	if err != nil {
		return balancer{}, err
	}
	if len(found) == 0 || found[0].loadBalancer == "" || found[0].targetGroup == "" {
		return balancer{}, cloud.Errorf(cloud.NotFound, "load balancer %s, or its target group, does not exist any more", nameOf(req.Token))
	}
	return found[0], nil
}

// makeBalancer makes all parts but the listener.
func (d *driver) makeBalancer(ctx context.Context, req cloud.BalancerRequest) (balancer, error) {
	var spec infrav1.AWSLoadBalancer
	if req.Spec != nil && req.Spec.AWS != nil {
		spec = *req.Spec.AWS
	}
	in, err := d.subnetsOfBalancer(ctx, spec)
	if err != nil {
		return balancer{}, err
	}
	groups, err := d.securityGroups(ctx, spec.SecurityGroups, in[0].vpc)
	if err != nil {
		return balancer{}, err
	}
	b := balancer{token: req.Token, owner: req.OwnershipID}
	if b.group, err = d.makeGroup(ctx, req, in[0].vpc); err != nil {
		return balancer{}, err
	}
	err = d.makeParts(ctx, req, spec, in, append([]string{b.group}, groups...), &b)
	if words := refusalOf(err).code; words == duplicateTargetGroup || words == duplicateLoadBalancer {
		// It was made with other settings, such as other subnets with the same tags.
		return d.findBalancer(ctx, req)
	}
	return b, err
}

// makeParts makes target group and load balancer.
func (d *driver) makeParts(ctx context.Context, req cloud.BalancerRequest, spec infrav1.AWSLoadBalancer, in []subnet, groups []string,
	b *balancer) error {
	name, tags := nameOf(req.Token), balancerTags(req)
	targets, err := d.elb.CreateTargetGroup(ctx, &elb.CreateTargetGroupInput{
		Name: &name, Tags: tags, VpcId: &in[0].vpc, TargetType: elbtypes.TargetTypeEnumIp, Protocol: elbtypes.ProtocolEnumTcp, Port: &req.Port,
		HealthCheckProtocol: elbtypes.ProtocolEnumHttps, HealthCheckPath: aws.String(checkPath),
		HealthCheckIntervalSeconds: aws.Int32(checkSeconds), HealthCheckTimeoutSeconds: aws.Int32(timeoutSeconds),
		HealthyThresholdCount: aws.Int32(checkThreshold), UnhealthyThresholdCount: aws.Int32(checkThreshold),
	})
	if err != nil {
		return d.secrets.typed("CreateTargetGroup "+name, err)
	}
	scheme := elbtypes.LoadBalancerSchemeEnumInternetFacing
	if spec.Scheme == infrav1.LoadBalancerInternal {
		scheme = elbtypes.LoadBalancerSchemeEnumInternal
	}
	var subnets []string
	for _, s := range in {
		subnets = append(subnets, s.id)
	}
	made, err := d.elb.CreateLoadBalancer(ctx, &elb.CreateLoadBalancerInput{
		Name: &name, Tags: tags, Type: elbtypes.LoadBalancerTypeEnumNetwork, Scheme: scheme, Subnets: subnets, SecurityGroups: groups,
	})
	if err != nil {
		return d.secrets.typed("CreateLoadBalancer "+name, err)
	}
	if len(targets.TargetGroups) != 1 || len(made.LoadBalancers) != 1 {
		return cloud.Errorf(cloud.Unknown, "CreateLoadBalancer %s: unexpected response with %d target groups and %d load balancers",
			name, len(targets.TargetGroups), len(made.LoadBalancers))
	}
	b.targetGroup = aws.ToString(targets.TargetGroups[0].TargetGroupArn)
	b.setLoadBalancer(&made.LoadBalancers[0])
	return nil
}

// subnetsOfBalancer returns one subnet of each zone, because a load balancer can have no more. It
// chooses by ID, which never changes, so that a repeated create has the same settings.
func (d *driver) subnetsOfBalancer(ctx context.Context, spec infrav1.AWSLoadBalancer) ([]subnet, error) {
	const ofDefaultVPC = "default-for-az"
	var all []subnet
	var err error
	if spec.Subnets != nil {
		all, err = d.subnetsOf(ctx, *spec.Subnets)
	} else {
		all, err = d.subnets.Get(ctx, ofDefaultVPC, func(ctx context.Context) ([]subnet, error) {
			return d.findSubnets(ctx, infrav1.AWSSelector{}, filter(ofDefaultVPC, "true"))
		})
	}
	if err != nil {
		return nil, err
	}
	all = slices.SortedFunc(slices.Values(all), func(a, b subnet) int {
		return cmp.Or(strings.Compare(a.zone, b.zone), strings.Compare(a.id, b.id))
	})
	all = slices.CompactFunc(all, func(a, b subnet) bool { return a.zone == b.zone })
	for _, s := range all {
		if s.vpc != all[0].vpc {
			return nil, cloud.Errorf(cloud.InvalidSpec, "subnets %s and %s are of different VPCs (loadBalancer.cloud.aws.subnets: choose those of one VPC)", all[0].id, s.id)
		}
	}
	return all, nil
}

// makeGroup makes the load balancer's security group, which lets everybody connect to its port. A
// load balancer that was made without a group could never get one.
func (d *driver) makeGroup(ctx context.Context, req cloud.BalancerRequest, vpc string) (id string, err error) {
	name := nameOf(req.Token)
	var tags []types.Tag
	for _, tag := range balancerTags(req) {
		tags = append(tags, types.Tag{Key: tag.Key, Value: tag.Value})
	}
	made, err := d.ec2.CreateSecurityGroup(ctx, &ec2.CreateSecurityGroupInput{
		GroupName: &name, Description: aws.String("load balancer of a cluster, made by Drover"), VpcId: &vpc,
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeSecurityGroup, Tags: tags}},
	})
	switch err = d.secrets.typed("CreateSecurityGroup "+name, err); {
	case refusalOf(err).code == duplicateGroup:
		groups, err := d.groupsOf(ctx, tokens(map[string]bool{req.Token: true})...)
		if err != nil {
			return "", err
		}
		if len(groups) == 0 {
			return "", cloud.Errorf(cloud.Unavailable, "security group %s exists already, but EC2 does not show it yet with the tags of this load balancer", name)
		}
		id = groups[0].group
	case made != nil:
		id = aws.ToString(made.GroupId)
	default:
		return "", err
	}
	_, err = d.ec2.AuthorizeSecurityGroupIngress(ctx,
		&ec2.AuthorizeSecurityGroupIngressInput{GroupId: &id, IpPermissions: []types.IpPermission{{
			IpProtocol: aws.String("tcp"), FromPort: &req.Port, ToPort: &req.Port, IpRanges: []types.IpRange{{CidrIp: aws.String("0.0.0.0/0")}},
		}}})
	if err = d.secrets.typed("AuthorizeSecurityGroupIngress "+id, err); refusalOf(err).code == duplicateRule {
		return id, nil
	}
	return id, err
}

// adjust makes the listener, and changes the targets to those of the request. Targets that were
// registered before a restart are not known here. The next listing shows them.
func (d *driver) adjust(ctx context.Context, req cloud.BalancerRequest, b *balancer) error {
	if b.listener == "" {
		made, err := d.elb.CreateListener(ctx, &elb.CreateListenerInput{
			LoadBalancerArn: &b.loadBalancer, Port: &req.Port, Protocol: elbtypes.ProtocolEnumTcp, Tags: balancerTags(req),
			DefaultActions: []elbtypes.Action{{Type: elbtypes.ActionTypeEnumForward, TargetGroupArn: &b.targetGroup}},
		})
		if err != nil {
			return d.secrets.typed("CreateListener "+nameOf(req.Token), err)
		}
		for i := range made.Listeners {
			b.setListener(&made.Listeners[i])
		}
	}
	now := map[string]bool{}
	var added, removed []elbtypes.TargetDescription
	for _, address := range req.Targets {
		healthy, ok := b.targets[address]
		if now[address] = healthy; !ok {
			added = append(added, elbtypes.TargetDescription{Id: aws.String(address)})
		}
	}
	for _, address := range slices.Sorted(maps.Keys(b.targets)) {
		if _, ok := now[address]; !ok {
			removed = append(removed, elbtypes.TargetDescription{Id: aws.String(address)})
		}
	}
	if len(added) > 0 {
		if _, err := d.elb.RegisterTargets(ctx, &elb.RegisterTargetsInput{TargetGroupArn: &b.targetGroup, Targets: added}); err != nil {
			return d.secrets.typed("RegisterTargets "+nameOf(req.Token), err)
		}
	}
	if len(removed) > 0 {
		if _, err := d.elb.DeregisterTargets(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: &b.targetGroup, Targets: removed}); err != nil {
			return d.secrets.typed("DeregisterTargets "+nameOf(req.Token), err)
		}
	}
	b.targets = now
	return nil
}

func balancerTags(req cloud.BalancerRequest) []elbtypes.Tag {
	return []elbtypes.Tag{
		{Key: aws.String(cloud.TagOwnership), Value: &req.OwnershipID},
		{Key: aws.String(cloud.TagToken), Value: &req.Token},
		{Key: aws.String(cloud.TagMachine), Value: aws.String(cloud.Clip(req.Namespace+"/"+req.Name, maxTagValue))},
	}
}

// listBalancers returns the known load balancers. The first listing of a process searches the
// account for those of earlier processes. A load balancer that works costs one call.
func (d *driver) listBalancers(ctx context.Context) (all []cloud.Resource, err error) {
	if !d.balancers.IsSearched() {
		found, err := d.groupsOf(ctx, filter("tag-key", cloud.TagOwnership))
		if err := d.balancers.MayRead(err, false); err != nil {
			return nil, err
		}
		for _, b := range found {
			d.balancers.note(b.token, b.owner)
		}
		d.balancers.Listed(nil)
	}
	for _, b := range d.balancers.all() {
		b, err := d.refresh(ctx, b)
		switch {
		case cloud.CodeOf(err) == cloud.Conflict: // one without its tags: live reads say so
			continue
		case err != nil:
			return nil, err
		}
		if b.exists() {
			all = append(all, b.resource())
		}
	}
	return all, nil
}

// refresh reads a known load balancer with as few calls as possible. The targets of a load balancer
// that is gone are unused, so their health tells whether it exists.
func (d *driver) refresh(ctx context.Context, b balancer) (balancer, error) {
	if b.loadBalancer != "" && b.listener != "" && b.state == elbtypes.LoadBalancerStateEnumActive {
		used, err := d.readHealth(ctx, &b)
		if err == nil && used {
			d.balancers.saw(b)
			return b, nil
		}
		if err != nil && cloud.CodeOf(err) != cloud.NotFound {
			return b, err
		}
	}
	found, err := d.readBalancers(ctx, map[string]bool{b.token: true}, nil)
	if err != nil || len(found) == 0 {
		return balancer{token: b.token, owner: b.owner}, err
	}
	return found[0], nil
}

// balancersOf returns the load balancers with the tokens, by live reads.
func (d *driver) balancersOf(ctx context.Context, wanted map[string]bool, recorded map[string]string) (all []cloud.Resource, err error) {
	found, err := d.readBalancers(ctx, wanted, recorded)
	for _, b := range found {
		all = append(all, b.resource())
	}
	return all, err
}

// readBalancers reads all parts that have one of the tokens. It looks by name for those that the
// driver knows, and for those whose creation was recorded (their owners by token), even if their
// security group is not there. A part that has the name, and no tags, is a Conflict: it is not gone.
func (d *driver) readBalancers(ctx context.Context, wanted map[string]bool, recorded map[string]string) (found []balancer, err error) {
	var names []string
	for _, token := range slices.Sorted(maps.Keys(wanted)) {
		names = append(names, nameOf(token))
	}
	groups, err := d.groupsOf(ctx, filter(groupName, names...))
	if err != nil {
		return nil, err
	}
	owners := maps.Clone(recorded)
	for _, b := range d.balancers.all() {
		if owners == nil {
			owners = map[string]string{}
		}
		owners[b.token] = b.owner
	}
	for _, token := range slices.Sorted(maps.Keys(owners)) {
		if wanted[token] && !slices.ContainsFunc(groups, func(g balancer) bool { return g.token == token }) {
			groups = append(groups, balancer{token: token, owner: owners[token]})
		}
	}
	for _, b := range groups {
		if !wanted[b.token] {
			continue
		}
		if err := d.readParts(ctx, &b); err != nil {
			return nil, err
		}
		if d.balancers.saw(b); b.exists() {
			found = append(found, b)
		}
	}
	return found, nil
}

// groupsOf returns the security groups of load balancers that match the filters. One that has a
// name which the filters ask for, and no tags, is a Conflict.
func (d *driver) groupsOf(ctx context.Context, filters ...types.Filter) (all []balancer, err error) {
	answer, err := d.ec2.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{Filters: filters})
	if err != nil {
		return nil, d.secrets.typed("DescribeSecurityGroups", err)
	}
	for _, group := range answer.SecurityGroups {
		b := balancer{group: aws.ToString(group.GroupId)}
		b.owner, b.token = tagsOf(group.Tags)
		switch name := aws.ToString(group.GroupName); {
		case b.owner != "" && name == nameOf(b.token):
			all = append(all, b)
		case (b.token == "" || b.owner == "") && slices.ContainsFunc(filters, func(f types.Filter) bool {
			return aws.ToString(f.Name) == groupName && slices.Contains(f.Values, name)
		}):
			return nil, untagged("security group "+b.group, name)
		}
	}
	return all, nil
}

// readParts reads the other parts of a load balancer, of which it has the token. Parts that have
// the name and not the token in their tags are not Drover's.
func (d *driver) readParts(ctx context.Context, b *balancer) error {
	name, before := nameOf(b.token), d.balancers.get(b.token)
	b.changes = before.changes
	balancers, err := d.elb.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{Names: []string{name}})
	if err = d.secrets.typed("DescribeLoadBalancers "+name, err); err != nil && cloud.CodeOf(err) != cloud.NotFound {
		return err
	}
	groups, err := d.elb.DescribeTargetGroups(ctx, &elb.DescribeTargetGroupsInput{Names: []string{name}})
	if err = d.secrets.typed("DescribeTargetGroups "+name, err); err != nil && cloud.CodeOf(err) != cloud.NotFound {
		return err
	}
	if balancers != nil && len(balancers.LoadBalancers) > 0 {
		b.setLoadBalancer(&balancers.LoadBalancers[0])
	}
	if groups != nil && len(groups.TargetGroups) > 0 {
		b.targetGroup = aws.ToString(groups.TargetGroups[0].TargetGroupArn)
	}
	if b.loadBalancer != before.loadBalancer || b.targetGroup != before.targetGroup {
		if err := d.checkTags(ctx, b); err != nil {
			return err
		}
	}
	if b.loadBalancer != "" {
		answer, err := d.elb.DescribeListeners(ctx, &elb.DescribeListenersInput{LoadBalancerArn: &b.loadBalancer})
		if err = d.secrets.typed("DescribeListeners "+name, err); err != nil && cloud.CodeOf(err) != cloud.NotFound {
			return err
		}
		for i := 0; answer != nil && i < len(answer.Listeners); i++ {
			b.setListener(&answer.Listeners[i])
		}
	}
	if b.targetGroup != "" {
		if _, err := d.readHealth(ctx, b); err != nil && cloud.CodeOf(err) != cloud.NotFound {
			return err
		}
	}
	return nil
}

// untagged is the error for a part of a load balancer without its tags.
func untagged(part, name string) error {
	return cloud.Errorf(cloud.Conflict, "%s of load balancer %s exists without its tags %s and %s: set them again, or delete it", part, name,
		cloud.TagToken, cloud.TagOwnership)
}

// checkTags drops the parts that have another token.
func (d *driver) checkTags(ctx context.Context, b *balancer) error {
	var arns []string
	for _, arn := range []string{b.loadBalancer, b.targetGroup} {
		if arn != "" {
			arns = append(arns, arn)
		}
	}
	if len(arns) == 0 {
		return nil
	}
	answer, err := d.elb.DescribeTags(ctx, &elb.DescribeTagsInput{ResourceArns: arns})
	if err != nil {
		return d.secrets.typed("DescribeTags "+nameOf(b.token), err)
	}
	ours := map[string]bool{}
	for _, of := range answer.TagDescriptions {
		arn := aws.ToString(of.ResourceArn)
		at := slices.IndexFunc(of.Tags, func(tag elbtypes.Tag) bool { return aws.ToString(tag.Key) == cloud.TagToken })
		if at < 0 {
			return untagged(arn, nameOf(b.token))
		}
		ours[arn] = aws.ToString(of.Tags[at].Value) == b.token
	}
	if !ours[b.loadBalancer] {
		b.loadBalancer, b.address = "", ""
	}
	if !ours[b.targetGroup] {
		b.targetGroup = ""
	}
	return nil
}

// readHealth reads the targets, and reports whether their health shows that a load balancer uses
// them.
func (d *driver) readHealth(ctx context.Context, b *balancer) (used bool, err error) {
	answer, err := d.elb.DescribeTargetHealth(ctx, &elb.DescribeTargetHealthInput{TargetGroupArn: &b.targetGroup})
	if err != nil {
		return false, d.secrets.typed("DescribeTargetHealth "+nameOf(b.token), err)
	}
	b.targets = map[string]bool{}
	for _, t := range answer.TargetHealthDescriptions {
		if t.Target == nil || t.TargetHealth == nil || t.TargetHealth.State == elbtypes.TargetHealthStateEnumDraining {
			continue
		}
		b.targets[aws.ToString(t.Target.Id)] = t.TargetHealth.State == elbtypes.TargetHealthStateEnumHealthy
		used = used || t.TargetHealth.Reason != elbtypes.TargetHealthReasonEnumNotInUse
	}
	return used, nil
}

func (b *balancer) setLoadBalancer(lb *elbtypes.LoadBalancer) {
	b.loadBalancer, b.address, b.created = aws.ToString(lb.LoadBalancerArn), aws.ToString(lb.DNSName), aws.ToTime(lb.CreatedTime)
	b.state, b.reason, b.zones = "", "", nil
	for _, zone := range lb.AvailabilityZones {
		b.zones = append(b.zones, aws.ToString(zone.ZoneName))
	}
	slices.Sort(b.zones)
	if lb.State != nil {
		b.state, b.reason = lb.State.Code, aws.ToString(lb.State.Reason)
	}
}

// setListener records a listener if it forwards to the target group.
func (b *balancer) setListener(l *elbtypes.Listener) {
	if slices.ContainsFunc(l.DefaultActions, func(a elbtypes.Action) bool { return aws.ToString(a.TargetGroupArn) == b.targetGroup }) {
		b.listener, b.port = aws.ToString(l.ListenerArn), aws.ToInt32(l.Port)
	}
}

// resource returns the load balancer with all its parts as one Resource.
func (b balancer) resource() cloud.Resource {
	r := cloud.Resource{
		Kind: cloud.KindBalancer, ID: nameOf(b.token), Token: b.token, OwnershipID: b.owner, CreatedAt: b.created, State: cloud.StatePending,
		Reason:   b.reason,
		Balancer: &cloud.BalancerState{Address: b.address, Port: b.port, Zones: b.zones},
	}
	switch {
	case b.loadBalancer == "":
		r.Reason = "there is no load balancer, only other parts of it"
	case b.state == elbtypes.LoadBalancerStateEnumFailed:
		r.State = cloud.StateFailed
	case b.listener != "" && (b.state == elbtypes.LoadBalancerStateEnumActive || b.state == elbtypes.LoadBalancerStateEnumActiveImpaired):
		r.State = cloud.StateRunning
	}
	for _, address := range slices.Sorted(maps.Keys(b.targets)) {
		r.Balancer.Targets = append(r.Balancer.Targets, cloud.BalancerTarget{Address: address, Healthy: b.targets[address]})
	}
	return r
}

// deleteBalancer deletes the parts in order, until one is still in use.
func (d *driver) deleteBalancer(ctx context.Context, r cloud.Resource) error {
	if err := driverkit.CheckOwned(r); err != nil {
		return err
	}
	b := d.balancers.get(r.Token)
	err := d.checkTags(ctx, &b) // somebody may have taken them off since
	if err != nil && cloud.CodeOf(err) != cloud.NotFound {
		return err
	}
	if !b.exists() || err != nil {
		found, err := d.readBalancers(ctx, map[string]bool{r.Token: true}, nil)
		if err != nil || len(found) == 0 {
			return err
		}
		b = found[0]
	}
	err = d.deleteParts(ctx, b)
	d.balancers.changed(balancer{token: b.token, owner: b.owner}) // only reads tell what is left
	return err
}

func (d *driver) deleteParts(ctx context.Context, b balancer) error {
	name := nameOf(b.token)
	if b.loadBalancer != "" {
		if _, err := d.elb.DeleteLoadBalancer(ctx, &elb.DeleteLoadBalancerInput{LoadBalancerArn: &b.loadBalancer}); err != nil {
			return d.secrets.typed("DeleteLoadBalancer "+name, err)
		}
		d.deletedBalancers.Put(b.token, struct{}{}, partsInUse)
	}
	if b.targetGroup != "" {
		if _, err := d.elb.DeleteTargetGroup(ctx, &elb.DeleteTargetGroupInput{TargetGroupArn: &b.targetGroup}); err != nil {
			return d.waitForParts(b, d.secrets.typed("DeleteTargetGroup "+name, err))
		}
	}
	if b.group != "" {
		if _, err := d.ec2.DeleteSecurityGroup(ctx, &ec2.DeleteSecurityGroupInput{GroupId: &b.group}); err != nil {
			return d.waitForParts(b, d.secrets.typed("DeleteSecurityGroup "+name, err))
		}
	}
	return nil
}

// waitForParts returns Queued for a part that is in use while the deleted load balancer may be what
// uses it, and else err. AWS shows a Network Load Balancer no more when its deletion begins, and
// deletes its network interfaces, which have the security group, minutes later
// (https://github.com/hashicorp/terraform-provider-aws/issues/40).
func (d *driver) waitForParts(b balancer, err error) error {
	if code := refusalOf(err).code; (code == resourceInUse || code == dependencyViolation) && d.deletedBalancers.Has(b.token) {
		return &cloud.Queued{After: partsRecheck}
	}
	return err
}
