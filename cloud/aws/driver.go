// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// Page sizes: the largest MaxResults that EC2 accepts, and the smallest for DescribeInstances.
const (
	instancesPage  = 1000
	smallestPage   = 5
	statusPage     = 1000
	volumesPage    = 500
	interfacesPage = 1000
	tagsPage       = 1000
)

type driver struct {
	ec2     *ec2.Client
	elb     *elb.Client
	ssm     *ssm.Client
	sts     *sts.Client
	region  string
	secrets redactor

	place       driverkit.Memo[string]
	images      driverkit.Memo[image]
	parameters  driverkit.Memo[string]
	subnets     driverkit.Memo[[]subnet]
	fullSubnets driverkit.Recent[struct{}] // by ID
	groups      driverkit.Memo[[]string]
	types       driverkit.Memo[types.InstanceTypeInfo]
	leftovers   driverkit.Memo[[]cloud.Resource]
	notices     driverkit.Memo[map[string]string] // notices by instance ID
	balancers   balancers
	// deletedBalancers are the load balancers, by token, whose parts may still be in use.
	deletedBalancers driverkit.Recent[struct{}]
	lastNotices      atomic.Pointer[map[string]string] // the notices last read
	pages            driverkit.PageSizes
	lastDelete       atomic.Int64 // time of the last delete, in Unix nanoseconds
}

func newDriver(cfg cloud.Config) (cloud.Driver, error) {
	if cfg.Account == nil || cfg.Account.Cloud.AWS == nil {
		return nil, cloud.Invalid("the account's spec.cloud.aws is not set")
	}
	account := cfg.Account.Cloud.AWS
	if account.Endpoint != "" && cfg.Credentials == nil {
		return nil, cloud.Invalid("a custom endpoint needs its own credentials")
	}
	transport, err := cfg.Connect(nil)
	if err != nil {
		return nil, err
	}
	base := aws.Config{
		Region:     account.Region,
		HTTPClient: client{driverkit.Client(transport)},
		Retryer:    func() aws.Retryer { return aws.NopRetryer{} },
		AppID:      "drover",
	}
	if account.Endpoint != "" {
		base.BaseEndpoint = &account.Endpoint
	}
	login, err := newLogin(cfg, base)
	if err != nil {
		return nil, err
	}
	base.Credentials = login.provider
	fips, dual := endpointKinds(account)
	d := &driver{
		region:  account.Region,
		sts:     newSTS(base, account),
		place:   driverkit.Memo[string]{TTL: placeTTL},
		secrets: login.secrets,
		ec2: ec2.NewFromConfig(base, func(o *ec2.Options) {
			o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = fips, dual
		}),
		elb: elb.NewFromConfig(base, func(o *elb.Options) {
			o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = fips, dual
		}),
		ssm: ssm.NewFromConfig(base, func(o *ssm.Options) {
			o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = fips, dual
		}),
		images:     driverkit.Memo[image]{TTL: resolvedTTL},
		parameters: driverkit.Memo[string]{TTL: resolvedTTL},
		subnets:    driverkit.Memo[[]subnet]{TTL: resolvedTTL},
		groups:     driverkit.Memo[[]string]{TTL: resolvedTTL},
		types:      driverkit.Memo[types.InstanceTypeInfo]{TTL: typeTTL},
		leftovers:  driverkit.Memo[[]cloud.Resource]{TTL: leftoversTTL},
		notices:    driverkit.Memo[map[string]string]{TTL: noticesTTL},
	}
	if queue := account.InterruptionQueue; queue.URL != "" {
		return &queueDriver{driver: d, queue: queue, sqs: sqs.NewFromConfig(base, func(o *sqs.Options) {
			o.EndpointOptions.UseFIPSEndpoint, o.EndpointOptions.UseDualStackEndpoint = fips, dual
		})}, nil
	}
	return d, nil
}

// Probe reads the region's zones and the account's place. It leaves out local and wavelength zones,
// which are not failure domains.
func (d *driver) Probe(ctx context.Context) (cloud.Info, error) {
	const op = "DescribeAvailabilityZones"
	answer, err := d.ec2.DescribeAvailabilityZones(ctx, &ec2.DescribeAvailabilityZonesInput{Filters: []types.Filter{
		filter("state", "available"), filter("zone-type", "availability-zone"),
	}})
	if err != nil {
		return cloud.Info{}, d.secrets.typed(op, err)
	}
	place, err := d.place.Get(ctx, "", d.findPlace)
	if err != nil {
		return cloud.Info{}, err
	}
	info := cloud.Info{Place: place}
	for _, zone := range answer.AvailabilityZones {
		if name := aws.ToString(zone.ZoneName); name != "" {
			info.FailureDomains = append(info.FailureDomains, name)
		}
	}
	slices.Sort(info.FailureDomains)
	return info, nil
}

// identityARN matches the ARN of a user or role (arn:<partition>:<iam or sts>::<account ID>:…).
var identityARN = regexp.MustCompile(`^arn:(aws[a-z0-9-]{0,20}):(?:iam|sts)::([0-9]{12}):`)

// findPlace asks STS for the owner of the credentials. STS answers without any permission.
func (d *driver) findPlace(ctx context.Context) (string, error) {
	const op = "GetCallerIdentity"
	answer, err := d.sts.GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "", d.secrets.typed(op, err)
	}
	arn := identityARN.FindStringSubmatch(aws.ToString(answer.Arn))
	if arn == nil || arn[2] != aws.ToString(answer.Account) {
		return "", cloud.Errorf(cloud.Unknown, "%s: unexpected response without an AWS account (not AWS): check spec.cloud.aws.endpoint", op)
	}
	return arn[1] + ":" + arn[2] + ":" + d.region, nil
}

// List reads the instances on every call. It reads leftovers every few minutes, and on every call
// for some minutes after a delete, because a delete may leave something behind.
func (d *driver) List(ctx context.Context) ([]cloud.Resource, error) {
	ours := filter("tag-key", cloud.TagOwnership)
	all, err := d.instances(ctx, ours)
	if err != nil {
		return nil, err
	}
	if time.Since(time.Unix(0, d.lastDelete.Load())) < leftoversTTL {
		d.leftovers.Forget("")
	}
	left, err := d.leftovers.Get(ctx, "", func(ctx context.Context) ([]cloud.Resource, error) {
		// Attached resources belong to their instance, which is listed.
		volumes, err := d.volumes(ctx, ours, filter("status", "available", "error"))
		if err != nil {
			return nil, err
		}
		interfaces, err := d.interfaces(ctx, ours, filter("status", "available"))
		if err != nil {
			return nil, err
		}
		addresses, err := d.addresses(ctx, ours)
		return slices.Concat(volumes, interfaces, addresses), err
	})
	if err != nil {
		return nil, err
	}
	balancers, err := d.listBalancers(ctx)
	if err != nil {
		return nil, err
	}
	d.addNotices(ctx, all)
	return slices.Concat(all, left, balancers), nil
}

// Describe filters by token only: an instance that has the Reference's ProviderID and tags also has
// its token. Describe looks for volumes, network interfaces and addresses only if no live instance
// has the token. Until then they belong to the instance.
func (d *driver) Describe(ctx context.Context, refs []cloud.Reference) ([]cloud.Resource, error) {
	wanted := map[string]bool{}
	for _, ref := range refs {
		if ref.Token != "" {
			wanted[ref.Token] = true
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	found, err := d.instances(ctx, tokens(wanted)...)
	if err != nil {
		return nil, err
	}
	found = filterByTokens(found, wanted)
	d.setNotices(d.previousNotices(), found)
	for _, r := range found {
		if r.State != cloud.StateTerminated {
			delete(wanted, r.Token)
		}
	}
	left, err := d.dependants(ctx, wanted, driverkit.RecordedBalancers(refs))
	if err != nil {
		return nil, err
	}
	return append(found, filterByTokens(left, wanted)...), nil
}

// Find implements cloud.Finder. EC2 answers InvalidInstanceID.NotFound only for an ID that it does
// not have: a right to see some instances only does not exist.
func (d *driver) Find(ctx context.Context, ref cloud.Reference) (*cloud.Resource, error) {
	id := ref.ProviderID[strings.LastIndexByte(ref.ProviderID, '/')+1:]
	const op = "DescribeInstances"
	answer, err := d.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{id}})
	if err = d.secrets.typed(op, err); err != nil {
		if refusalOf(err).code == invalidInstance+".NotFound" {
			return nil, nil
		}
		return nil, err
	}
	for _, reservation := range answer.Reservations {
		for i := range reservation.Instances {
			if found := toInstance(&reservation.Instances[i]); found.ID == id {
				return &found, nil
			}
		}
	}
	return nil, cloud.Errorf(cloud.Unknown, "%s: unexpected response without the instance %s (not EC2): check spec.cloud.aws", op,
		cloud.Clip(id, 64))
}

// dependants returns volumes, network interfaces, addresses and load balancers with the tokens.
// DescribeTags tells which kinds exist, which is nearly always none. EC2 shows the tags of deleted
// resources for a while, so each kind's own call confirms them.
func (d *driver) dependants(ctx context.Context, wanted map[string]bool, recorded map[string]string) (left []cloud.Resource, err error) {
	if len(wanted) == 0 {
		return nil, nil
	}
	tagged, err := d.tagged(ctx, wanted)
	if err != nil {
		return nil, err
	}
	for _, of := range []struct {
		kind types.ResourceType
		read func(context.Context, ...types.Filter) ([]cloud.Resource, error)
	}{
		{types.ResourceTypeVolume, d.volumes},
		{types.ResourceTypeNetworkInterface, d.interfaces},
		{types.ResourceTypeElasticIp, d.addresses},
	} {
		if !slices.Contains(tagged, of.kind) {
			continue
		}
		found, err := of.read(ctx, tokens(wanted)...)
		if err != nil {
			return nil, err
		}
		left = append(left, found...)
	}
	if !slices.Contains(tagged, types.ResourceTypeSecurityGroup) && !d.balancers.knows(wanted) && len(recorded) == 0 {
		return left, nil
	}
	balancers, err := d.balancersOf(ctx, wanted, recorded)
	return append(left, balancers...), err
}

// tagged returns the kinds of the resources that carry one of the tokens. It leaves out instances,
// which EC2 shows for an hour.
func (d *driver) tagged(ctx context.Context, wanted map[string]bool) ([]types.ResourceType, error) {
	filters := []types.Filter{
		filter("key", cloud.TagToken), filter("value", literals(wanted)...),
		filter("resource-type", string(types.ResourceTypeVolume), string(types.ResourceTypeNetworkInterface), string(types.ResourceTypeElasticIp),
			string(types.ResourceTypeSecurityGroup)),
	}
	return driverkit.Pages(ctx, "DescribeTags", func(ctx context.Context, next string) ([]types.ResourceType, string, error) {
		answer, err := d.ec2.DescribeTags(ctx, &ec2.DescribeTagsInput{Filters: filters, MaxResults: aws.Int32(tagsPage),
			NextToken: optional(next)})
		if err != nil {
			return nil, "", d.secrets.typed("DescribeTags", err)
		}
		var kinds []types.ResourceType
		for _, tag := range answer.Tags {
			kinds = append(kinds, tag.ResourceType)
		}
		return kinds, aws.ToString(answer.NextToken), nil
	})
}

// tokens returns the filter for resources that carry one of the tokens, or nil without tokens.
func tokens(wanted map[string]bool) []types.Filter {
	if len(wanted) == 0 {
		return nil
	}
	return []types.Filter{filter("tag:"+cloud.TagToken, literals(wanted)...)}
}

// literals returns the tokens as values of a filter.
func literals(wanted map[string]bool) (values []string) {
	for token := range wanted {
		values = append(values, literal(token))
	}
	slices.Sort(values)
	return values
}

// filterByTokens returns the resources whose token is exactly one of those wanted.
func filterByTokens(found []cloud.Resource, wanted map[string]bool) []cloud.Resource {
	return slices.DeleteFunc(found, func(r cloud.Resource) bool { return !wanted[r.Token] })
}

// filter returns an EC2 filter.
func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: &name, Values: values}
}

// literal escapes a filter value, so that EC2 does not read it as a pattern.
func literal(value string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`).Replace(value)
}

// instances returns all pages of the instances that match the filters, or nil without filters.
func (d *driver) instances(ctx context.Context, filters ...types.Filter) ([]cloud.Resource, error) {
	if len(filters) == 0 {
		return nil, nil
	}
	const op = "DescribeInstances"
	all, err := driverkit.SizedPages(ctx, op, &d.pages, smallestPage, instancesPage,
		func(ctx context.Context, next string, size int) ([]cloud.Resource, string, error) {
			answer, err := d.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{
				Filters: filters, MaxResults: aws.Int32(int32(size)), NextToken: optional(next),
			})
			if err != nil {
				return nil, "", d.secrets.typed(op, err)
			}
			var found []cloud.Resource
			for _, reservation := range answer.Reservations {
				for i := range reservation.Instances {
					found = append(found, toInstance(&reservation.Instances[i]))
				}
			}
			return found, aws.ToString(answer.NextToken), nil
		})
	return ownedOnce(all), err
}

func (d *driver) volumes(ctx context.Context, filters ...types.Filter) ([]cloud.Resource, error) {
	return listOwned(ctx, "DescribeVolumes", func(ctx context.Context, next string) ([]cloud.Resource, string, error) {
		answer, err := d.ec2.DescribeVolumes(ctx, &ec2.DescribeVolumesInput{
			Filters: filters, MaxResults: aws.Int32(volumesPage), NextToken: optional(next),
		})
		if err != nil {
			return nil, "", d.secrets.typed("DescribeVolumes", err)
		}
		var found []cloud.Resource
		for i := range answer.Volumes {
			if outlivesInstance(&answer.Volumes[i]) {
				found = append(found, toVolume(&answer.Volumes[i]))
			}
		}
		return found, aws.ToString(answer.NextToken), nil
	})
}

func (d *driver) interfaces(ctx context.Context, filters ...types.Filter) ([]cloud.Resource, error) {
	return listOwned(ctx, "DescribeNetworkInterfaces", func(ctx context.Context, next string) ([]cloud.Resource, string, error) {
		answer, err := d.ec2.DescribeNetworkInterfaces(ctx, &ec2.DescribeNetworkInterfacesInput{
			Filters: filters, MaxResults: aws.Int32(interfacesPage), NextToken: optional(next),
		})
		if err != nil {
			return nil, "", d.secrets.typed("DescribeNetworkInterfaces", err)
		}
		var found []cloud.Resource
		for i := range answer.NetworkInterfaces {
			nic := &answer.NetworkInterfaces[i]
			if nic.Attachment == nil || !aws.ToBool(nic.Attachment.DeleteOnTermination) {
				found = append(found, toInterface(nic))
			}
		}
		return found, aws.ToString(answer.NextToken), nil
	})
}

// addresses returns the elastic IP addresses that nothing uses. Drover allocates none: others have
// tagged these as a machine's. DescribeAddresses has no pages.
func (d *driver) addresses(ctx context.Context, filters ...types.Filter) ([]cloud.Resource, error) {
	return listOwned(ctx, "DescribeAddresses", func(ctx context.Context, _ string) ([]cloud.Resource, string, error) {
		answer, err := d.ec2.DescribeAddresses(ctx, &ec2.DescribeAddressesInput{Filters: filters})
		if err != nil {
			return nil, "", d.secrets.typed("DescribeAddresses", err)
		}
		var found []cloud.Resource
		for i := range answer.Addresses {
			if aws.ToString(answer.Addresses[i].AssociationId) == "" {
				found = append(found, toAddress(&answer.Addresses[i]))
			}
		}
		return found, "", nil
	})
}

// listOwned reads all pages and returns each resource that has an ownership ID once.
func listOwned(ctx context.Context, op string,
	page func(ctx context.Context, next string) (found []cloud.Resource, after string, err error)) ([]cloud.Resource, error) {
	all, err := driverkit.Pages(ctx, op, page)
	return ownedOnce(all), err
}

// ownedOnce returns each resource that has an ownership ID once.
func ownedOnce(all []cloud.Resource) []cloud.Resource {
	seen := map[string]bool{}
	return slices.DeleteFunc(all, func(r cloud.Resource) bool {
		drop := r.ID == "" || r.OwnershipID == "" || seen[r.ID]
		seen[r.ID] = true
		return drop
	})
}

func (d *driver) Delete(ctx context.Context, resources []cloud.Resource) []error {
	d.lastDelete.Store(time.Now().UnixNano())
	errs := make([]error, len(resources))
	var instances []int
	for i, r := range resources {
		var err error
		switch r.Kind {
		case cloud.KindInstance:
			instances = append(instances, i)
			continue
		case cloud.KindDisk:
			_, err = d.ec2.DeleteVolume(ctx, &ec2.DeleteVolumeInput{VolumeId: &r.ID})
			err = d.secrets.typed("DeleteVolume "+r.ID, err)
		case cloud.KindNIC:
			_, err = d.ec2.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: &r.ID})
			err = d.secrets.typed("DeleteNetworkInterface "+r.ID, err)
		case cloud.KindAddress:
			_, err = d.ec2.ReleaseAddress(ctx, &ec2.ReleaseAddressInput{AllocationId: &r.ID})
			err = d.secrets.typed("ReleaseAddress "+r.ID, err)
		case cloud.KindBalancer:
			err = d.deleteBalancer(ctx, r)
		default:
			err = cloud.Invalid("delete %s %s: the kind is not supported on AWS", r.Kind, r.ID)
		}
		if cloud.CodeOf(err) != cloud.NotFound { // already gone is success
			errs[i] = err
		}
	}
	d.terminate(ctx, resources, instances, errs)
	return errs
}

// terminate deletes the instances at the indices in which with one call. The call is all or
// nothing: terminate retries without the instances that the error names. If the error names none,
// it splits the batch in half.
func (d *driver) terminate(ctx context.Context, resources []cloud.Resource, which []int, errs []error) {
	if len(which) == 0 {
		return
	}
	ids := make([]string, len(which))
	for n, i := range which {
		ids[n] = resources[i].ID
	}
	_, err := d.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: ids})
	err = d.secrets.typed("TerminateInstances", err)
	code, words := refusalOf(err).code, refusalOf(err).message
	if code != notPermitted && !strings.HasPrefix(code, invalidInstance) {
		for _, i := range which {
			errs[i] = err
		}
		return
	}
	var rest []int
	for _, i := range which {
		switch named := len(which) == 1 || strings.Contains(words, resources[i].ID); {
		case !named:
			rest = append(rest, i)
		case cloud.CodeOf(err) != cloud.NotFound:
			errs[i] = err
		}
	}
	if half := len(rest) / 2; len(rest) == len(which) {
		d.terminate(ctx, resources, rest[:half], errs)
		rest = rest[half:]
	}
	d.terminate(ctx, resources, rest, errs)
}

// tagsOf returns the ownership ID and the creation token from the tags.
func tagsOf(tags []types.Tag) (ownership, token string) {
	for _, tag := range tags {
		switch aws.ToString(tag.Key) {
		case cloud.TagOwnership:
			ownership = aws.ToString(tag.Value)
		case cloud.TagToken:
			token = aws.ToString(tag.Value)
		}
	}
	return ownership, token
}
