// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	elb "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2"
	elbtypes "github.com/aws/aws-sdk-go-v2/service/elasticloadbalancingv2/types"

	"github.com/drover-io/drover/cloud/aws/ec2stub"
)

// TestBalancerContract is TestContract for load balancers and the security groups that they need.
func TestBalancerContract(t *testing.T) {
	t.Parallel()
	t.Run("stand-in", func(t *testing.T) {
		t.Parallel()
		b := newBalancerWorld(t, ec2stub.New(t, ec2stub.Options{Keys: testKeys()}).URL)
		for _, c := range balancerContract(b) {
			t.Run(c.name, func(t *testing.T) { c.hold(t, b.world, c.want) })
		}
	})
	t.Run("moto", func(t *testing.T) {
		t.Parallel()
		b := newBalancerWorld(t, startMoto(t))
		for _, c := range balancerContract(b) {
			t.Run(c.name, func(t *testing.T) {
				want := c.want
				if c.moto != nil {
					t.Logf("moto differs: %s", c.moto.why)
					want = c.moto.want
				}
				c.hold(t, b.world, want)
			})
		}
	})
}

// balancerWorld is a world with what the questions about load balancers leave for later ones.
type balancerWorld struct {
	*world
	elb                                 *elb.Client
	vpc                                 string
	group, targets, balancer, listening string // the security group's ID, the others' ARNs
}

func newBalancerWorld(t *testing.T, endpoint string) *balancerWorld {
	t.Helper()
	b := &balancerWorld{world: newWorld(t, endpoint)}
	b.elb = elb.NewFromConfig(b.config(testKey, testSecret))
	found, err := b.ec2.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{SubnetIds: []string{b.subnet}})
	if err != nil {
		t.Fatal(err)
	}
	b.vpc = *found.Subnets[0].VpcId
	return b
}

func (b *balancerWorld) groupInput() *ec2.CreateSecurityGroupInput {
	return &ec2.CreateSecurityGroupInput{GroupName: aws.String("one"), Description: aws.String("load balancer"), VpcId: &b.vpc,
		TagSpecifications: []types.TagSpecification{{ResourceType: types.ResourceTypeSecurityGroup,
			Tags: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}}}}}
}

func (b *balancerWorld) ruleInput(group string) *ec2.AuthorizeSecurityGroupIngressInput {
	return &ec2.AuthorizeSecurityGroupIngressInput{GroupId: &group, IpPermissions: []types.IpPermission{{
		IpProtocol: aws.String("tcp"), FromPort: aws.Int32(6443), ToPort: aws.Int32(6443),
		IpRanges: []types.IpRange{{CidrIp: aws.String("0.0.0.0/0")}},
	}}}
}

func (b *balancerWorld) targetsInput(port int32) *elb.CreateTargetGroupInput {
	return &elb.CreateTargetGroupInput{Name: aws.String("one"), Protocol: elbtypes.ProtocolEnumTcp, Port: &port, VpcId: &b.vpc,
		TargetType: elbtypes.TargetTypeEnumIp, Tags: elbTags("a", "b"), HealthCheckProtocol: elbtypes.ProtocolEnumHttps,
		HealthCheckPath: aws.String("/readyz")}
}

func (b *balancerWorld) balancerInput(name string, scheme elbtypes.LoadBalancerSchemeEnum) *elb.CreateLoadBalancerInput {
	return &elb.CreateLoadBalancerInput{Name: &name, Type: elbtypes.LoadBalancerTypeEnumNetwork, Subnets: []string{b.subnet},
		SecurityGroups: []string{b.group}, Scheme: scheme, Tags: elbTags("a", "b")}
}

func (b *balancerWorld) listenerInput(balancer string) *elb.CreateListenerInput {
	return &elb.CreateListenerInput{LoadBalancerArn: &balancer, Port: aws.Int32(6443), Protocol: elbtypes.ProtocolEnumTcp,
		DefaultActions: []elbtypes.Action{{Type: elbtypes.ActionTypeEnumForward, TargetGroupArn: &b.targets}}}
}

// deleteBalancers deletes all load balancers of a name, of which moto may have several.
func (b *balancerWorld) deleteBalancers(ctx context.Context, name string) error {
	answer, err := b.elb.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{Names: []string{name}})
	if err != nil {
		return err
	}
	for _, lb := range answer.LoadBalancers {
		if _, err := b.elb.DeleteLoadBalancer(ctx, &elb.DeleteLoadBalancerInput{LoadBalancerArn: lb.LoadBalancerArn}); err != nil {
			return err
		}
	}
	return nil
}

func elbTags(key, value string) []elbtypes.Tag {
	return []elbtypes.Tag{{Key: &key, Value: &value}}
}

const nowhere = "arn:aws:elasticloadbalancing:us-east-1:123456789012:loadbalancer/net/none/0123456789abcdef"

func sameAs(first, now string) string {
	if first == now {
		return "the same"
	}
	return "another"
}

// balancerContract are the questions, in order. Each names what AWS's API Reference says.
func balancerContract(b *balancerWorld) []question {
	ask := func(name, want string, moto *difference, ask func(context.Context) (string, error)) question {
		return question{name: name, want: want, moto: moto, ask: func(ctx context.Context, _ *world) (string, error) { return ask(ctx) }}
	}
	target := func(ip string) []elbtypes.TargetDescription { return []elbtypes.TargetDescription{{Id: &ip}} }
	health := func(ctx context.Context) (string, error) {
		answer, err := b.elb.DescribeTargetHealth(ctx, &elb.DescribeTargetHealthInput{TargetGroupArn: &b.targets})
		if err != nil {
			return "", err
		}
		var all []string
		for _, d := range answer.TargetHealthDescriptions {
			all = append(all, fmt.Sprintf("%s:%d %s", *d.Target.Id, *d.Target.Port, d.TargetHealth.State))
		}
		return strings.Join(all, ", "), nil
	}
	groups := func(ctx context.Context, filters ...types.Filter) (string, error) {
		answer, err := b.ec2.DescribeSecurityGroups(ctx, &ec2.DescribeSecurityGroupsInput{Filters: filters})
		if err != nil {
			return "", err
		}
		var all []string
		for _, g := range answer.SecurityGroups {
			all = append(all, *g.GroupName, fmt.Sprint(len(g.Tags)))
		}
		return strings.Join(all, " "), nil
	}
	return []question{
		ask("a group in no VPC", "InvalidVpcID.NotFound", &difference{"done", "it checks no VPC"}, func(ctx context.Context) (string, error) {
			in := b.groupInput()
			in.GroupName, in.VpcId, in.TagSpecifications = aws.String("nowhere"), aws.String("vpc-0dead000"), nil
			_, err := b.ec2.CreateSecurityGroup(ctx, in)
			return "done", err
		}),
		ask("a group", "true", nil, func(ctx context.Context) (string, error) {
			answer, err := b.ec2.CreateSecurityGroup(ctx, b.groupInput())
			if err != nil {
				return "", err
			}
			b.group = *answer.GroupId
			return fmt.Sprint(strings.HasPrefix(b.group, "sg-")), nil
		}),
		ask("a group of the same name", "InvalidGroup.Duplicate", nil, func(ctx context.Context) (string, error) {
			_, err := b.ec2.CreateSecurityGroup(ctx, b.groupInput())
			return "", err
		}),
		ask("a group by name", "one 1", nil, func(ctx context.Context) (string, error) {
			return groups(ctx, filter("group-name", "one"), filter("vpc-id", b.vpc))
		}),
		ask("a group by tag", "one 1", nil, func(ctx context.Context) (string, error) { return groups(ctx, filter("tag:a", "b")) }),
		ask("the kind of a group in its tags", "security-group", nil, func(ctx context.Context) (string, error) {
			answer, err := b.ec2.DescribeTags(ctx, &ec2.DescribeTagsInput{Filters: []types.Filter{filter("key", "a"), filter("value", "b"),
				filter("resource-type", "security-group")}})
			if err != nil || len(answer.Tags) != 1 {
				return "", err
			}
			return string(answer.Tags[0].ResourceType), nil
		}),
		ask("a rule", "done", nil, func(ctx context.Context) (string, error) {
			_, err := b.ec2.AuthorizeSecurityGroupIngress(ctx, b.ruleInput(b.group))
			return "done", err
		}),
		ask("the rule again", "InvalidPermission.Duplicate", nil, func(ctx context.Context) (string, error) {
			_, err := b.ec2.AuthorizeSecurityGroupIngress(ctx, b.ruleInput(b.group))
			return "", err
		}),
		ask("a rule for no group", "InvalidGroup.NotFound", nil, func(ctx context.Context) (string, error) {
			_, err := b.ec2.AuthorizeSecurityGroupIngress(ctx, b.ruleInput("sg-0dead000"))
			return "", err
		}),
		ask("a target group", "one TCP 6443 ip", nil, func(ctx context.Context) (string, error) {
			answer, err := b.elb.CreateTargetGroup(ctx, b.targetsInput(6443))
			if err != nil {
				return "", err
			}
			g := answer.TargetGroups[0]
			b.targets = *g.TargetGroupArn
			return fmt.Sprintf("%s %s %d %s", *g.TargetGroupName, g.Protocol, *g.Port, g.TargetType), nil
		}),
		ask("the target group again", "the same", &difference{"DuplicateTargetGroupName", "AWS documents the call as idempotent"},
			func(ctx context.Context) (string, error) {
				answer, err := b.elb.CreateTargetGroup(ctx, b.targetsInput(6443))
				if err != nil {
					return "", err
				}
				return sameAs(b.targets, *answer.TargetGroups[0].TargetGroupArn), nil
			}),
		ask("a target group of the same name with another port", "DuplicateTargetGroupName", nil, func(ctx context.Context) (string, error) {
			_, err := b.elb.CreateTargetGroup(ctx, b.targetsInput(443))
			return "", err
		}),
		ask("a name that is too long", "ValidationError", nil, func(ctx context.Context) (string, error) {
			in := b.targetsInput(6443)
			in.Name = aws.String(strings.Repeat("a", 33))
			_, err := b.elb.CreateTargetGroup(ctx, in)
			return "", err
		}),
		ask("a load balancer in no subnet", "SubnetNotFound",
			&difference{"InvalidSubnetID.NotFound", "it answers with EC2's code, which AWS does not list for this call"},
			func(ctx context.Context) (string, error) {
				in := b.balancerInput("none", elbtypes.LoadBalancerSchemeEnumInternal)
				in.Subnets = []string{"subnet-0dead000"}
				_, err := b.elb.CreateLoadBalancer(ctx, in)
				return "", err
			}),
		ask("a load balancer with no group", "InvalidSecurityGroup", &difference{"done", "it checks no groups"},
			func(ctx context.Context) (string, error) {
				in := b.balancerInput("wrong", elbtypes.LoadBalancerSchemeEnumInternal)
				in.SecurityGroups = []string{"sg-0dead000"}
				_, err := b.elb.CreateLoadBalancer(ctx, in)
				return "done", err
			}),
		ask("a load balancer", "one network internal provisioning or active, has a DNS name", nil, func(ctx context.Context) (string, error) {
			answer, err := b.elb.CreateLoadBalancer(ctx, b.balancerInput("one", elbtypes.LoadBalancerSchemeEnumInternal))
			if err != nil {
				return "", err
			}
			lb := answer.LoadBalancers[0]
			b.balancer = *lb.LoadBalancerArn
			state := string(lb.State.Code)
			if lb.State.Code == elbtypes.LoadBalancerStateEnumProvisioning || lb.State.Code == elbtypes.LoadBalancerStateEnumActive {
				state = "provisioning or active"
			}
			if strings.HasSuffix(*lb.DNSName, ".elb.us-east-1.amazonaws.com") || strings.HasSuffix(*lb.DNSName, ".us-east-1.elb.amazonaws.com") {
				state += ", has a DNS name"
			}
			return fmt.Sprintf("%s %s %s %s", *lb.LoadBalancerName, lb.Type, lb.Scheme, state), nil
		}),
		ask("a load balancer twice", "the same", &difference{"another", "AWS documents the call as idempotent"},
			func(ctx context.Context) (string, error) {
				one, err := b.elb.CreateLoadBalancer(ctx, b.balancerInput("two", elbtypes.LoadBalancerSchemeEnumInternal))
				if err != nil {
					return "", err
				}
				two, err := b.elb.CreateLoadBalancer(ctx, b.balancerInput("two", elbtypes.LoadBalancerSchemeEnumInternal))
				if err != nil {
					return "", err
				}
				return sameAs(*one.LoadBalancers[0].LoadBalancerArn, *two.LoadBalancers[0].LoadBalancerArn), nil
			}),
		ask("a load balancer of the same name with another scheme", "DuplicateLoadBalancerName", &difference{"done", "names are not unique"},
			func(ctx context.Context) (string, error) {
				_, err := b.elb.CreateLoadBalancer(ctx, b.balancerInput("two", elbtypes.LoadBalancerSchemeEnumInternetFacing))
				return "done", err
			}),
		ask("a listener of no load balancer", "LoadBalancerNotFound", nil, func(ctx context.Context) (string, error) {
			_, err := b.elb.CreateListener(ctx, b.listenerInput(nowhere))
			return "", err
		}),
		ask("a target without a listener", "10.0.0.9:6443 unused", &difference{"10.0.0.9:6443 healthy", "its targets are healthy at once"},
			func(ctx context.Context) (string, error) {
				if _, err := b.elb.RegisterTargets(ctx, &elb.RegisterTargetsInput{TargetGroupArn: &b.targets,
					Targets: target("10.0.0.9")}); err != nil {
					return "", err
				}
				return health(ctx)
			}),
		ask("a listener", "6443 TCP forward", nil, func(ctx context.Context) (string, error) {
			answer, err := b.elb.CreateListener(ctx, b.listenerInput(b.balancer))
			if err != nil {
				return "", err
			}
			l := answer.Listeners[0]
			b.listening = *l.ListenerArn
			return fmt.Sprintf("%d %s %s", *l.Port, l.Protocol, l.DefaultActions[0].Type), nil
		}),
		ask("listeners", "the same 6443, forward to the same", nil, func(ctx context.Context) (string, error) {
			answer, err := b.elb.DescribeListeners(ctx, &elb.DescribeListenersInput{LoadBalancerArn: &b.balancer})
			if err != nil || len(answer.Listeners) != 1 {
				return fmt.Sprint(len(answer.Listeners)), err
			}
			l := answer.Listeners[0]
			return fmt.Sprintf("%s %d, forward to %s", sameAs(b.listening, *l.ListenerArn), *l.Port,
				sameAs(b.targets, *l.DefaultActions[0].TargetGroupArn)), nil
		}),
		ask("load balancers by name", "the same 1", nil, func(ctx context.Context) (string, error) {
			answer, err := b.elb.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{Names: []string{"one"}})
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%s %d", sameAs(b.balancer, *answer.LoadBalancers[0].LoadBalancerArn), len(answer.LoadBalancers)), nil
		}),
		ask("load balancers by name, one of them unknown", "LoadBalancerNotFound", &difference{"1", "it answers with those that there are"},
			func(ctx context.Context) (string, error) {
				answer, err := b.elb.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{Names: []string{"one", "missing"}})
				if err != nil {
					return "", err
				}
				return fmt.Sprint(len(answer.LoadBalancers)), nil
			}),
		ask("no load balancer of the name", "LoadBalancerNotFound", nil, func(ctx context.Context) (string, error) {
			_, err := b.elb.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{Names: []string{"missing"}})
			return "", err
		}),
		ask("target groups by name", "the same of the same", nil, func(ctx context.Context) (string, error) {
			answer, err := b.elb.DescribeTargetGroups(ctx, &elb.DescribeTargetGroupsInput{Names: []string{"one"}})
			if err != nil || len(answer.TargetGroups[0].LoadBalancerArns) != 1 {
				return "", err
			}
			g := answer.TargetGroups[0]
			return sameAs(b.targets, *g.TargetGroupArn) + " of " + sameAs(b.balancer, g.LoadBalancerArns[0]), nil
		}),
		ask("no target group of the name", "TargetGroupNotFound", nil, func(ctx context.Context) (string, error) {
			_, err := b.elb.DescribeTargetGroups(ctx, &elb.DescribeTargetGroupsInput{Names: []string{"missing"}})
			return "", err
		}),
		ask("tags", "a=b a=b", nil, func(ctx context.Context) (string, error) {
			answer, err := b.elb.DescribeTags(ctx, &elb.DescribeTagsInput{ResourceArns: []string{b.balancer, b.targets}})
			if err != nil {
				return "", err
			}
			var all []string
			for _, d := range answer.TagDescriptions {
				for _, tag := range d.Tags {
					all = append(all, *tag.Key+"="+*tag.Value)
				}
			}
			return strings.Join(all, " "), nil
		}),
		ask("tags of no load balancer", "LoadBalancerNotFound", &difference{"done", "it answers without tags"},
			func(ctx context.Context) (string, error) {
				_, err := b.elb.DescribeTags(ctx, &elb.DescribeTagsInput{ResourceArns: []string{nowhere}})
				return "done", err
			}),
		ask("the listener again", "the same", &difference{"another", "AWS documents the call as idempotent"},
			func(ctx context.Context) (string, error) {
				answer, err := b.elb.CreateListener(ctx, b.listenerInput(b.balancer))
				if err != nil {
					return "", err
				}
				return sameAs(b.listening, *answer.Listeners[0].ListenerArn), nil
			}),
		ask("register a target again", "10.0.0.9", nil, func(ctx context.Context) (string, error) {
			if _, err := b.elb.RegisterTargets(ctx, &elb.RegisterTargetsInput{TargetGroupArn: &b.targets, Targets: target("10.0.0.9")}); err != nil {
				return "", err
			}
			all, err := health(ctx)
			if n := strings.Count(all, "10.0.0.9"); n != 1 {
				return all, err
			}
			return "10.0.0.9", err
		}),
		ask("deregister", "", nil, func(ctx context.Context) (string, error) {
			if _, err := b.elb.DeregisterTargets(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: &b.targets,
				Targets: target("10.0.0.9")}); err != nil {
				return "", err
			}
			return health(ctx)
		}),
		ask("deregister an unknown target", "done", &difference{"InvalidTarget", "AWS documents that it succeeds"},
			func(ctx context.Context) (string, error) {
				_, err := b.elb.DeregisterTargets(ctx, &elb.DeregisterTargetsInput{TargetGroupArn: &b.targets, Targets: target("10.0.0.8")})
				return "done", err
			}),
		ask("delete a target group in use", "ResourceInUse", nil, func(ctx context.Context) (string, error) {
			_, err := b.elb.DeleteTargetGroup(ctx, &elb.DeleteTargetGroupInput{TargetGroupArn: &b.targets})
			return "", err
		}),
		ask("delete a group in use", "DependencyViolation", &difference{"done", "no load balancer of it holds a group"},
			func(ctx context.Context) (string, error) {
				_, err := b.ec2.DeleteSecurityGroup(ctx, &ec2.DeleteSecurityGroupInput{GroupId: &b.group})
				return "done", err
			}),
		ask("delete a load balancer, twice", "done", nil, func(ctx context.Context) (string, error) {
			if err := b.deleteBalancers(ctx, "two"); err != nil {
				return "", err
			}
			for range 2 {
				if _, err := b.elb.DeleteLoadBalancer(ctx, &elb.DeleteLoadBalancerInput{LoadBalancerArn: &b.balancer}); err != nil {
					return "", err
				}
			}
			return "done", nil
		}),
		ask("delete a target group", "TargetGroupNotFound", nil, func(ctx context.Context) (string, error) {
			if _, err := b.elb.DeleteTargetGroup(ctx, &elb.DeleteTargetGroupInput{TargetGroupArn: &b.targets}); err != nil {
				return "", err
			}
			_, err := health(ctx)
			return "", err
		}),
		ask("delete a group", "InvalidGroup.NotFound", nil, func(ctx context.Context) (string, error) {
			for range 2 { // moto's is gone already
				if _, err := b.ec2.DeleteSecurityGroup(ctx, &ec2.DeleteSecurityGroupInput{GroupId: &b.group}); err != nil {
					return "", err
				}
			}
			return "", nil
		}),
		ask("nothing is left", "0", nil, func(ctx context.Context) (string, error) {
			answer, err := b.elb.DescribeLoadBalancers(ctx, &elb.DescribeLoadBalancersInput{})
			if err != nil {
				return "", err
			}
			left := slices.DeleteFunc(answer.LoadBalancers, func(lb elbtypes.LoadBalancer) bool { return *lb.LoadBalancerName != "one" })
			return fmt.Sprint(len(left)), nil
		}),
	}
}
