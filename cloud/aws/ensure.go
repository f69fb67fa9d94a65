// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// Ensure creates the machine with one RunInstances call, with the machine's token as client token.
//
// A client token is valid in one zone: in another zone EC2 would create a second instance
// ("Ensuring idempotency in Amazon EC2 API requests", zonal idempotency). The caller chooses the
// zone and records it (cloud.Traits.ZonalIdempotency).
func (d *driver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	p, err := d.plan(ctx, req)
	if err != nil {
		if req.MaybeSent && cloud.CodeOf(err) == cloud.NoCapacity { // the driver's own, not EC2's
			return d.findEarlier(ctx, req, err)
		}
		return cloud.Resource{}, err
	}
	made, err := d.runInstances(ctx, req, p)
	switch cloud.CodeOf(err) {
	case cloud.NoCapacity:
		d.subnets.Forget(keyOf(p.spec.Subnets)) // its count of free addresses may be outdated
		if refusalOf(err).code == subnetFull {
			err = d.leaveSubnet(ctx, req, p, err)
		}
	case cloud.NotFound, cloud.InvalidSpec:
		err = d.invalidatePlan(p, err)
	}
	return made, err
}

// leaveSubnet remembers that a subnet has no free address. If the zone has another subnet that may
// have one, the error says to try the zone again at once.
func (d *driver) leaveSubnet(ctx context.Context, req cloud.Request, p plan, full error) error {
	d.fullSubnets.Put(p.subnet.id, struct{}{}, fullSubnetTTL)
	again, ok := errors.AsType[*cloud.Error](full)
	if _, err := d.subnet(ctx, p.spec.Subnets, req.FailureDomain); err != nil || !ok {
		return full
	}
	return &cloud.Error{Code: again.Code, Message: again.Message, RetryAfter: nextSubnetDelay, Err: again.Err}
}

// DryRun implements preflight.DryRunner. EC2 checks permissions and parameters, but neither quotas
// nor capacity.
func (d *driver) DryRun(ctx context.Context, req cloud.Request) error {
	p, err := d.plan(ctx, req)
	if err != nil {
		return err
	}
	in := runInput(req, p)
	in.DryRun = aws.Bool(true)
	_, err = d.ec2.RunInstances(ctx, in)
	if err = d.secrets.typed(runInstances, err); refusalOf(err).code == dryRunOperation {
		return nil
	}
	return err
}

// clientToken returns the client token of one attempt. EC2 may tie a token to the first request
// with it, even one that failed, so each attempt after a refusal has another token.
func clientToken(req cloud.Request) *string {
	token := req.Token
	if req.Attempt > 0 {
		token += "-" + strconv.Itoa(req.Attempt)
	}
	return &token
}

// plan resolves what the machine names. It makes independent calls in parallel, because an
// account's first machines wait for them.
func (d *driver) plan(ctx context.Context, req cloud.Request) (p plan, err error) {
	if p.spec, err = union.MachineOf(req.Spec); err != nil {
		return plan{}, err
	}
	if p.userData, err = userData(req.UserData); err != nil {
		return plan{}, cloud.Invalid("%v", err)
	}
	var asked cloud.Group
	var noSubnet, noGroups error
	asked.Go(func() (err error) { p.image, err = d.image(ctx, p.spec.Image); return err })
	if p.subnet, noSubnet = d.subnet(ctx, p.spec.Subnets, req.FailureDomain); noSubnet == nil {
		p.groups, noGroups = d.securityGroups(ctx, p.spec.SecurityGroups, p.subnet.vpc)
	}
	return p, cmp.Or(asked.Wait(), noSubnet, noGroups)
}

// invalidatePlan forgets what was resolved, because parts of it may be gone. If an image from a
// lookup or parameter is gone, the error becomes NotFound, which is retried with a new lookup.
func (d *driver) invalidatePlan(p plan, err error) error {
	d.subnets.Forget(keyOf(p.spec.Subnets))
	d.groups.Forget(p.subnet.vpc + keyOf(p.spec.SecurityGroups))
	d.images.Forget(keyOf(p.spec.Image))
	d.parameters.Forget(p.spec.Image.SSMParameter)
	var own *cloud.Error
	if refusalOf(err).code == imageNotFound && p.spec.Image.ID == "" && errors.As(err, &own) {
		return &cloud.Error{Code: cloud.NotFound, Message: own.Message, Err: own.Err}
	}
	return err
}

func (d *driver) runInstances(ctx context.Context, req cloud.Request, p plan) (cloud.Resource, error) {
	answer, err := d.ec2.RunInstances(ctx, runInput(req, p))
	if err = d.secrets.typed(runInstances, err); err != nil {
		if why := refusalOf(err); why.code == parameterMismatch || why.code == instanceTerminated {
			return d.adopt(ctx, req, why)
		}
		return cloud.Resource{}, err
	}
	if len(answer.Instances) != 1 {
		return cloud.Resource{}, cloud.Errorf(cloud.Unknown, "%s: unexpected response with %d instances, expected one", runInstances,
			len(answer.Instances))
	}
	made := toInstance(&answer.Instances[0])
	if made.ID == "" || made.FailureDomain == "" || made.Token != req.Token {
		return cloud.Resource{}, cloud.Errorf(cloud.Unknown, "%s: unexpected response: no instance has the token of the request", runInstances)
	}
	return made, nil
}

// findEarlier finds the instance of an earlier attempt in a zone where the machine no longer has a
// subnet, so that the request can't be repeated. If EC2 shows none, findEarlier returns why: this
// create was certainly not sent. The engine finds out whether the earlier attempt takes effect.
func (d *driver) findEarlier(ctx context.Context, req cloud.Request, why error) (cloud.Resource, error) {
	found, err := d.find(ctx, req.Token)
	switch {
	case err != nil:
		return cloud.Resource{}, err
	case found != nil:
		return *found, nil
	}
	return cloud.Resource{}, why
}

// find returns the instance with the token, terminated or not, or nil if EC2 shows none. It returns
// Conflict if there are several.
func (d *driver) find(ctx context.Context, token string) (*cloud.Resource, error) {
	wanted := map[string]bool{token: true}
	found, err := d.instances(ctx, tokens(wanted)...)
	if err != nil {
		return nil, err
	}
	switch found = filterByTokens(found, wanted); len(found) {
	case 0:
		return nil, nil
	case 1:
		return &found[0], nil
	}
	ids := make([]string, len(found))
	for i := range found {
		ids[i] = found[i].ID
	}
	return nil, cloud.Errorf(cloud.Conflict, "%d instances have the token %s: %s", len(found), token, strings.Join(ids, ", "))
}

// adopt returns the instance of an earlier request with the same token. That request had other
// parameters, such as user data or image, or its instance is gone.
//
// EC2 binds a token also to a request that it refuses, such as for lack of capacity, and from then
// on refuses all others with the token (https://github.com/ubicloud/ubicloud/pull/5898). So if EC2
// shows no instance, adopt returns a definite refusal, and the engine takes the next attempt, with
// another token, once it has proved that the earlier request made nothing. Where the engine does not
// know of an earlier request, its proof would be missing: then the outcome is open.
func (d *driver) adopt(ctx context.Context, req cloud.Request, why refusal) (cloud.Resource, error) {
	found, err := d.find(ctx, req.Token)
	switch {
	case err != nil:
		return cloud.Resource{}, err
	case found != nil:
		return *found, nil
	case why.code == instanceTerminated:
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict,
			"RunInstances: %s: the machine's instance was created and is gone: delete the Machine to replace it", why)
	}
	code := cloud.Unavailable
	if req.MaybeSent {
		code = cloud.Conflict
	}
	return cloud.Resource{}, cloud.Errorf(code,
		"RunInstances: %s: an earlier request with this machine's token had different parameters, and EC2 shows no instance of it", why)
}

// runInput returns the request that creates the whole machine.
func runInput(req cloud.Request, p plan) *ec2.RunInstancesInput {
	spec := p.spec
	in := &ec2.RunInstancesInput{
		ClientToken:                      clientToken(req),
		MinCount:                         aws.Int32(1),
		MaxCount:                         aws.Int32(1),
		InstanceType:                     types.InstanceType(spec.InstanceType),
		ImageId:                          &p.image.id,
		UserData:                         p.userData,
		KeyName:                          optional(spec.KeyName),
		IamInstanceProfile:               instanceProfile(spec.InstanceProfile),
		Placement:                        placement(p),
		NetworkInterfaces:                networkInterfaces(p),
		BlockDeviceMappings:              blockDevices(p),
		MetadataOptions:                  metadataOptions(spec.Metadata),
		CapacityReservationSpecification: capacityReservation(spec.CapacityReservation),
		CpuOptions:                       cpuOptions(spec.CPUOptions),
		InstanceMarketOptions:            marketOptions(spec.Market),
		TagSpecifications:                tagSpecifications(req, spec),
	}
	if spec.DetailedMonitoring == infrav1.FeatureEnabled {
		in.Monitoring = &types.RunInstancesMonitoringEnabled{Enabled: aws.Bool(true)}
	}
	return in
}
