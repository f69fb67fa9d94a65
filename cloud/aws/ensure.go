// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"cmp"
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"

	"github.com/drover-io/drover/cloud"
)

// Ensure makes the machine by one RunInstances, whose client token is the machine's.
//
// A client token is good for one zone: EC2 would make a second instance in another ("Ensuring
// idempotency in Amazon EC2 API requests", zonal idempotency). The zone is the caller's, who has it
// on record (cloud.Traits.ZonalIdempotency).
func (d *driver) Ensure(ctx context.Context, req cloud.Request) (cloud.Resource, error) {
	p, err := d.plan(ctx, req)
	if err != nil {
		if req.MaybeSent && cloud.CodeOf(err) == cloud.NoCapacity { // without a word of EC2's
			return d.settle(ctx, req, err)
		}
		return cloud.Resource{}, err
	}
	made, err := d.runInstances(ctx, req, p)
	switch cloud.CodeOf(err) {
	case cloud.NoCapacity:
		d.subnets.Forget(keyOf(p.spec.Subnets)) // its count of free addresses may be what was wrong
	case cloud.NotFound, cloud.InvalidSpec:
		err = d.doubt(p, err)
	}
	return made, err
}

// clientToken is EC2's for one attempt. EC2 may hold a token to the request that it was first sent
// with, also one that failed: after a refusal it is another.
func clientToken(req cloud.Request) *string {
	token := req.Token
	if req.Attempt > 0 {
		token += "-" + strconv.Itoa(req.Attempt)
	}
	return &token
}

// plan resolves what the machine names. What does not depend on another answer is asked for at the
// same time: an account's first machines wait for it.
func (d *driver) plan(ctx context.Context, req cloud.Request) (p plan, err error) {
	if p.spec, err = union.MachineOf(req.Spec); err != nil {
		return plan{}, err
	}
	if p.userData, err = userData(req.UserData); err != nil {
		return plan{}, err
	}
	var asked sync.WaitGroup
	var noImage, noSubnet, noGroups error
	asked.Go(func() { p.image, noImage = d.image(ctx, p.spec.Image) })
	if p.subnet, noSubnet = d.subnet(ctx, p.spec.Subnets, req.FailureDomain); noSubnet == nil {
		p.groups, noGroups = d.securityGroups(ctx, p.spec.SecurityGroups, p.subnet.vpc)
	}
	asked.Wait()
	return p, cmp.Or(noImage, noSubnet, noGroups)
}

// doubt forgets what was resolved, for something of it may be gone. An image that was found, and
// not named, is looked for again: its absence does not condemn the machine.
func (d *driver) doubt(p plan, err error) error {
	d.subnets.Forget(keyOf(p.spec.Subnets))
	d.groups.Forget(p.subnet.vpc + keyOf(p.spec.SecurityGroups))
	d.images.Forget(keyOf(p.spec.Image))
	d.parameters.Forget(p.spec.Image.SSMParameter)
	var own *cloud.Error
	if refused(err).code == imageNotFound && p.spec.Image.ID == "" && errors.As(err, &own) {
		return &cloud.Error{Code: cloud.NotFound, Message: own.Message, Err: own.Err}
	}
	return err
}

func (d *driver) runInstances(ctx context.Context, req cloud.Request, p plan) (cloud.Resource, error) {
	const op = "RunInstances"
	answer, err := d.ec2.RunInstances(ctx, runInput(req, p))
	if err = d.secrets.typed(op, err); err != nil {
		if why := refused(err); why.code == parameterMismatch || why.code == instanceTerminated {
			return d.adopt(ctx, req, why)
		}
		return cloud.Resource{}, err
	}
	if len(answer.Instances) != 1 {
		return cloud.Resource{}, cloud.Errorf(cloud.Unknown, "%s: the answer names %d instances, one was asked for", op, len(answer.Instances))
	}
	made := toInstance(&answer.Instances[0])
	if made.ID == "" || made.FailureDomain == "" || made.Token != req.Token {
		return cloud.Resource{}, cloud.Errorf(cloud.Unknown, "%s: the answer names no instance with the token that was sent", op)
	}
	return made, nil
}

// settle looks for what an earlier attempt made in a zone where the machine has no subnet any more,
// and which can't be repeated there. Where nothing is shown it answers why this create was not
// sent: that it was refused is certain, and whether the earlier attempt still takes effect is the
// engine's to find out.
func (d *driver) settle(ctx context.Context, req cloud.Request, why error) (cloud.Resource, error) {
	found, err := d.find(ctx, req.Token)
	switch {
	case err != nil:
		return cloud.Resource{}, err
	case found != nil:
		return *found, nil
	}
	return cloud.Resource{}, why
}

// find returns the instance with the token, terminated or not; nil where EC2 shows none. Two are
// Conflict.
func (d *driver) find(ctx context.Context, token string) (*cloud.Resource, error) {
	wanted := map[string]bool{token: true}
	found, err := d.instances(ctx, tokens(wanted)...)
	if err != nil {
		return nil, err
	}
	switch found = only(found, wanted); len(found) {
	case 0:
		return nil, nil
	case 1:
		return &found[0], nil
	}
	ids := make([]string, len(found))
	for i := range found {
		ids[i] = found[i].ID
	}
	return nil, cloud.Errorf(cloud.Conflict, "%d instances carry the token %s: %s", len(found), token, strings.Join(ids, ", "))
}

// adopt finds the instance that an earlier request with the same token made, which had other
// parameters (its user data or image was another) or whose instance is gone.
func (d *driver) adopt(ctx context.Context, req cloud.Request, why refusal) (cloud.Resource, error) {
	found, err := d.find(ctx, req.Token)
	switch {
	case err != nil:
		return cloud.Resource{}, err
	case found != nil:
		return *found, nil
	case why.code == instanceTerminated:
		return cloud.Resource{}, cloud.Errorf(cloud.Conflict, "RunInstances: %s: the machine's instance was made and is gone: delete the Machine, its successor is another", why)
	}
	return cloud.Resource{}, cloud.Errorf(cloud.Unavailable, "RunInstances: %s: an earlier request with this machine's token had other parameters, "+
		"and EC2 shows no instance of it. If this stays for minutes, nothing was made: delete the Machine, its successor has a token of its own", why)
}

// runInput is the whole machine in one request.
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
	if spec.DetailedMonitoring {
		in.Monitoring = &types.RunInstancesMonitoringEnabled{Enabled: aws.Bool(true)}
	}
	return in
}
