// SPDX-License-Identifier: Apache-2.0

package aws

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	sqstypes "github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
	"github.com/aws/smithy-go"
	. "github.com/onsi/gomega"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud/aws/ec2stub"
)

// TestContract makes the same calls to the stub and to moto, an independent implementation of AWS's
// documentation, and expects the same answers. This verifies that the stub behaves like AWS. The
// table explains each known difference of moto.
func TestContract(t *testing.T) {
	t.Parallel()
	t.Run("stand-in", func(t *testing.T) {
		t.Parallel()
		stub := ec2stub.New(t, ec2stub.Options{Keys: testKeys()})
		w := newWorld(t, stub.URL)
		w.image, w.queue = "ami-0a", stub.QueueURL()
		for _, c := range contract() {
			t.Run(c.name, func(t *testing.T) { c.hold(t, w, c.want) })
		}
	})
	t.Run("moto", func(t *testing.T) {
		t.Parallel()
		endpoint := startMoto(t)
		w := newWorld(t, endpoint)
		made, err := w.sqs.CreateQueue(t.Context(), &sqs.CreateQueueInput{QueueName: aws.String("drover")})
		if err != nil {
			t.Fatal(err)
		}
		w.queue = *made.QueueUrl
		for _, c := range contract() {
			t.Run(c.name, func(t *testing.T) {
				if c.moto == nil {
					c.hold(t, w, c.want)
					return
				}
				t.Logf("moto differs: %s", c.moto.why)
				c.hold(t, w, c.moto.want)
			})
		}
	})
}

// question is a call with a short answer: an error's code, or what matters of an answer.
type question struct {
	name string
	ask  func(ctx context.Context, w *world) (string, error)
	want string
	// moto is moto's answer, if that is different.
	moto *difference
}

type difference struct{ want, why string }

func (q question) hold(t *testing.T, w *world, want string) {
	t.Helper()
	got, err := q.ask(t.Context(), w)
	var api smithy.APIError
	if errors.As(err, &api) {
		got, err = api.ErrorCode(), nil
	}
	if err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func contract() []question {
	return []question{
		{name: "a zone has a name", want: "us-east-1a", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.DescribeAvailabilityZones(ctx,
				&ec2.DescribeAvailabilityZonesInput{Filters: []types.Filter{filter("state", "available")}})
			if err != nil {
				return "", err
			}
			return *answer.AvailabilityZones[0].ZoneName, nil
		}},
		{name: "unknown type", want: "InvalidInstanceType", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"t3.enormous"}})
			return "", err
		}},
		{name: "a type's size", want: "2 CPUs, 2048 MiB, x86_64, 3 interfaces of 4 addresses",
			ask: func(ctx context.Context, w *world) (string, error) {
				answer, err := w.ec2.DescribeInstanceTypes(ctx, &ec2.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"t3.small"}})
				if err != nil {
					return "", err
				}
				i := answer.InstanceTypes[0]
				architectures := i.ProcessorInfo.SupportedArchitectures
				return fmt.Sprintf("%d CPUs, %d MiB, %s, %d interfaces of %d addresses", *i.VCpuInfo.DefaultVCpus, *i.MemoryInfo.SizeInMiB,
					architectures[len(architectures)-1], *i.NetworkInfo.MaximumNetworkInterfaces, *i.NetworkInfo.Ipv4AddressesPerInterface), nil
			}},
		{name: "unknown image", want: "InvalidAMIID.NotFound", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.DescribeImages(ctx, &ec2.DescribeImagesInput{ImageIds: []string{"ami-0dead0000000dead"}})
			return "", err
		}},
		{name: "no image of the name", want: "0", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.DescribeImages(ctx, &ec2.DescribeImagesInput{Filters: []types.Filter{filter("name", "none-*")}})
			if err != nil {
				return "", err
			}
			return fmt.Sprint(len(answer.Images)), nil
		}},
		{name: "unknown subnet", want: "InvalidSubnetID.NotFound", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{SubnetIds: []string{"subnet-0dead000"}})
			return "", err
		}},
		{name: "no subnet with the tag", want: "0", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.DescribeSubnets(ctx, &ec2.DescribeSubnetsInput{Filters: []types.Filter{filter("tag:none", "x")}})
			if err != nil {
				return "", err
			}
			return fmt.Sprint(len(answer.Subnets)), nil
		}},
		{name: "no group with the tag", want: "0", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.DescribeSecurityGroups(ctx,
				&ec2.DescribeSecurityGroupsInput{Filters: []types.Filter{filter("tag:none", "x"), filter("vpc-id", "vpc-01")}})
			if err != nil {
				return "", err
			}
			return fmt.Sprint(len(answer.SecurityGroups)), nil
		}},
		{name: "unknown parameter", want: "ParameterNotFound", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ssm.GetParameter(ctx, &ssm.GetParameterInput{Name: aws.String("/none")})
			return "", err
		}},
		{name: "create in an unknown subnet", want: "InvalidSubnetID.NotFound", ask: func(ctx context.Context, w *world) (string, error) {
			in := w.launch("t-0")
			in.NetworkInterfaces[0].SubnetId = aws.String("subnet-0dead000")
			_, err := w.ec2.RunInstances(ctx, in)
			return "", err
		}},
		{name: "create of an unknown image", want: "InvalidAMIID.NotFound", ask: func(ctx context.Context, w *world) (string, error) {
			in := w.launch("t-0")
			in.ImageId = aws.String("ami-0dead0000000dead")
			_, err := w.ec2.RunInstances(ctx, in)
			return "", err
		}},
		{name: "create", want: "living in us-east-1a, tagged t-1", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.RunInstances(ctx, w.launch("t-1"))
			if err != nil {
				return "", err
			}
			i := answer.Instances[0]
			_, token := tagsOf(i.Tags)
			w.first = *i.InstanceId
			return fmt.Sprintf("%s in %s, tagged %s", inShort(i.State.Name), *i.Placement.AvailabilityZone, token), nil
		}},
		{name: "create again", want: "the same", ask: func(ctx context.Context, w *world) (string, error) {
			return w.again(ctx, w.launch("t-1"))
		}, moto: &difference{"another", "it knows no client tokens"}},
		{name: "create again, otherwise", want: "IdempotentParameterMismatch", ask: func(ctx context.Context, w *world) (string, error) {
			in := w.launch("t-1")
			in.UserData = aws.String("b3RoZXI=")
			return w.again(ctx, in)
		}, moto: &difference{"another", "it knows no client tokens"}},
		{name: "a listing by tag has pages", want: "5 and a next token, then the rest", ask: func(ctx context.Context, w *world) (string, error) {
			for n := range 5 {
				if _, err := w.ec2.RunInstances(ctx, w.launch(fmt.Sprintf("page-%d", n))); err != nil {
					return "", err
				}
			}
			ours := []types.Filter{filter("tag-key", "drover-ownership-id")}
			first, err := w.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{Filters: ours, MaxResults: aws.Int32(5)})
			if err != nil {
				return "", err
			}
			second, err := w.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{Filters: ours, MaxResults: aws.Int32(5),
				NextToken: first.NextToken})
			if err != nil {
				return "", err
			}
			if n := len(first.Reservations); n != 5 || first.NextToken == nil || len(second.Reservations) == 0 || second.NextToken != nil {
				return fmt.Sprintf("%d, %v, %d", n, first.NextToken, len(second.Reservations)), nil
			}
			return "5 and a next token, then the rest", nil
		}},
		{name: "a listing by a token's tag", want: "1 of t-1", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{
				Filters: []types.Filter{filter("tag:drover-creation-token", "t-1", "none"), filter("instance-state-name", "pending", "running")}})
			if err != nil {
				return "", err
			}
			for _, r := range answer.Reservations {
				if _, token := tagsOf(r.Instances[0].Tags); token != "t-1" {
					return "one of " + token, nil
				}
			}
			return fmt.Sprintf("%d of t-1", len(answer.Reservations)), nil
		}, moto: &difference{"3 of t-1", "it made another one for each request with the token"}},
		{name: "kinds by a token's tag", want: "instance tagged t-1", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.DescribeTags(ctx, &ec2.DescribeTagsInput{Filters: []types.Filter{
				filter("key", "drover-creation-token"), filter("value", "t-1", "none"), filter("resource-type", "instance", "elastic-ip"),
			}})
			var all []string
			if err == nil {
				for _, tag := range answer.Tags {
					all = append(all, fmt.Sprintf("%s tagged %s", tag.ResourceType, *tag.Value))
				}
			}
			return strings.Join(slices.Compact(all), ", "), err
		}},
		{name: "no kind of another token", want: "0", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.DescribeTags(ctx, &ec2.DescribeTagsInput{Filters: []types.Filter{filter("key", "drover-creation-token"),
				filter("value", "none")}})
			if err != nil {
				return "", err
			}
			return fmt.Sprint(len(answer.Tags)), nil
		}},
		{name: "tags of an instance change", want: "a=2 c=3", ask: func(ctx context.Context, w *world) (string, error) {
			tag := func(key, value string) types.Tag { return types.Tag{Key: &key, Value: &value} }
			of := []string{w.first}
			if _, err := w.ec2.CreateTags(ctx, &ec2.CreateTagsInput{Resources: of,
				Tags: []types.Tag{tag("a", "1"), tag("b", "1"), tag("c", "3")}}); err != nil {
				return "", err
			}
			if _, err := w.ec2.CreateTags(ctx, &ec2.CreateTagsInput{Resources: of, Tags: []types.Tag{tag("a", "2")}}); err != nil {
				return "", err
			}
			_, err := w.ec2.DeleteTags(ctx, &ec2.DeleteTagsInput{Resources: of,
				Tags: []types.Tag{{Key: aws.String("b")}, {Key: aws.String("none")}, tag("c", "other")}})
			if err != nil {
				return "", err
			}
			return w.tags(ctx, "a", "b", "c")
		}},
		{name: "tags of one that does not exist", want: "InvalidInstanceID.NotFound", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.CreateTags(ctx, &ec2.CreateTagsInput{Resources: []string{"i-0dead00000000dead"},
				Tags: []types.Tag{{Key: aws.String("a"), Value: aws.String("1")}}})
			return "", err
		}, moto: &difference{"", "it tags what does not exist"}},
		{name: "a tag of AWS's own", want: "InvalidParameterValue", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.CreateTags(ctx, &ec2.CreateTagsInput{Resources: []string{w.first},
				Tags: []types.Tag{{Key: aws.String("aws:a"), Value: aws.String("1")}}})
			return "", err
		}, moto: &difference{"", "it takes any key"}},
		{name: "too few results", want: "InvalidParameterValue", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{MaxResults: aws.Int32(2)})
			return "taken", err
		}, moto: &difference{"taken", "it takes any number"}},
		{name: "delete with an unknown one", want: "InvalidInstanceID.NotFound", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{w.first, "i-0dead00000000dead"}})
			return "", err
		}},
		{name: "and nothing was deleted", want: "living", ask: func(ctx context.Context, w *world) (string, error) { return w.state(ctx) }},
		{name: "malformed ID", want: "InvalidInstanceID.Malformed", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{"malformed"}})
			return "", err
		}, moto: &difference{"InvalidInstanceID.NotFound", "it does not look at an ID's form"}},
		{name: "delete", want: "living", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{w.first}})
			if err != nil {
				return "", err
			}
			return inShort(answer.TerminatingInstances[0].PreviousState.Name), nil
		}},
		{name: "deleted is still shown", want: "terminated", ask: func(ctx context.Context, w *world) (string, error) { return w.state(ctx) }},
		{name: "delete again", want: "", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.TerminateInstances(ctx, &ec2.TerminateInstancesInput{InstanceIds: []string{w.first}})
			return "", err
		}, moto: &difference{"InvalidNetworkInterfaceID.NotFound", "it deletes the network interface with the instance each time"}},
		{name: "create what was deleted", want: "IdempotentInstanceTerminated", ask: func(ctx context.Context, w *world) (string, error) {
			return w.again(ctx, w.launch("t-1"))
		}, moto: &difference{"another", "it knows no client tokens"}},
		{name: "unknown volume", want: "InvalidVolume.NotFound", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.DeleteVolume(ctx, &ec2.DeleteVolumeInput{VolumeId: aws.String("vol-0dead000")})
			return "", err
		}},
		{name: "unknown network interface", want: "InvalidNetworkInterfaceID.NotFound", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.DeleteNetworkInterface(ctx, &ec2.DeleteNetworkInterfaceInput{NetworkInterfaceId: aws.String("eni-0dead000")})
			return "", err
		}},
		{name: "no address with the tag", want: "0", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.ec2.DescribeAddresses(ctx, &ec2.DescribeAddressesInput{Filters: []types.Filter{filter("tag-key", "none")}})
			if err != nil {
				return "", err
			}
			return fmt.Sprint(len(answer.Addresses)), nil
		}},
		{name: "unknown address", want: "InvalidAllocationID.NotFound", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.ec2.ReleaseAddress(ctx, &ec2.ReleaseAddressInput{AllocationId: aws.String("eipalloc-0dead000")})
			return "", err
		}},
		{name: "unknown queue", want: "AWS.SimpleQueueService.NonExistentQueue", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: aws.String(w.queue + "-2")})
			return "", err
		}},
		{name: "an empty queue", want: "0", ask: func(ctx context.Context, w *world) (string, error) { return w.receive(ctx) }},
		{name: "a message", want: "1 hello", ask: func(ctx context.Context, w *world) (string, error) {
			if _, err := w.sqs.SendMessage(ctx, &sqs.SendMessageInput{QueueUrl: &w.queue, MessageBody: aws.String("hello")}); err != nil {
				return "", err
			}
			return w.receive(ctx)
		}},
		{name: "a message that is hidden", want: "0", ask: func(ctx context.Context, w *world) (string, error) { return w.receive(ctx) }},
		{name: "a message that comes again", want: "1 hello", ask: func(ctx context.Context, w *world) (string, error) {
			return w.receiveWithin(ctx, 3)
		}},
		{name: "delete a message", want: "true", ask: func(ctx context.Context, w *world) (string, error) {
			answer, err := w.sqs.DeleteMessageBatch(ctx, &sqs.DeleteMessageBatchInput{QueueUrl: &w.queue,
				Entries: []sqstypes.DeleteMessageBatchRequestEntry{
					{Id: aws.String("0"), ReceiptHandle: &w.receipt},
				}})
			if err != nil {
				return "", err
			}
			return fmt.Sprint(len(answer.Successful) == 1), nil
		}},
		{name: "a queue that was emptied", want: "0",
			ask: func(ctx context.Context, w *world) (string, error) { return w.receiveWithin(ctx, 2) }},
		{name: "wrong secret", want: "SignatureDoesNotMatch", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.client(testKey, "wrong").DescribeInstances(ctx, &ec2.DescribeInstancesInput{})
			return "taken", err
		}, moto: &difference{"taken", "it checks no signature"}},
		{name: "unknown key", want: "AuthFailure", ask: func(ctx context.Context, w *world) (string, error) {
			_, err := w.client("AKIAOTHER", "wrong").DescribeInstances(ctx, &ec2.DescribeInstancesInput{})
			return "taken", err
		}, moto: &difference{"taken", "it checks no signature"}},
	}
}

// world is an endpoint, with the state that questions need and leave for later ones.
type world struct {
	endpoint      string
	ec2           *ec2.Client
	ssm           *ssm.Client
	sqs           *sqs.Client
	image, subnet string
	queue         string
	receipt       string // of the last message
	first         string // the first instance
}

func newWorld(t *testing.T, endpoint string) *world {
	t.Helper()
	w := &world{endpoint: endpoint}
	w.ec2 = w.client(testKey, testSecret)
	w.ssm = ssm.NewFromConfig(w.config(testKey, testSecret))
	w.sqs = sqs.NewFromConfig(w.config(testKey, testSecret))
	subnets, err := w.ec2.DescribeSubnets(t.Context(), &ec2.DescribeSubnetsInput{})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range subnets.Subnets {
		if *s.AvailabilityZone == "us-east-1a" {
			w.subnet = *s.SubnetId
		}
	}
	images, err := w.ec2.DescribeImages(t.Context(), &ec2.DescribeImagesInput{})
	if err != nil || len(images.Images) == 0 {
		t.Fatalf("there is no image: %v", err)
	}
	w.image = *images.Images[0].ImageId
	return w
}

func (w *world) config(key, secret string) aws.Config {
	return aws.Config{
		Region: "us-east-1", BaseEndpoint: &w.endpoint, Retryer: func() aws.Retryer { return aws.NopRetryer{} },
		Credentials: credentials.NewStaticCredentialsProvider(key, secret, ""),
	}
}

// receive returns the messages in the queue and hides them for a second.
func (w *world) receive(ctx context.Context) (string, error) { return w.receiveWithin(ctx, 0) }

func (w *world) receiveWithin(ctx context.Context, seconds int32) (string, error) {
	answer, err := w.sqs.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{QueueUrl: &w.queue, VisibilityTimeout: 1, WaitTimeSeconds: seconds,
		MessageSystemAttributeNames: []sqstypes.MessageSystemAttributeName{sqstypes.MessageSystemAttributeNameSentTimestamp}})
	if err != nil {
		return "", err
	}
	all := fmt.Sprint(len(answer.Messages))
	for _, m := range answer.Messages {
		w.receipt = *m.ReceiptHandle
		all += " " + *m.Body
		if m.Attributes["SentTimestamp"] == "" {
			all += " without its time"
		}
	}
	return all, nil
}

func (w *world) client(key, secret string) *ec2.Client {
	return ec2.NewFromConfig(w.config(key, secret))
}

// launch returns a small request of the driver.
func (w *world) launch(token string) *ec2.RunInstancesInput {
	req := request(token, func(m *infrav1.AWSMachine) {
		m.RootVolume = &infrav1.AWSVolume{
			SizeGiB: 30}
	}) // moto does not know the image's size
	return runInput(req, plan{spec: req.Spec.Cloud.AWS, image: image{id: w.image, root: "/dev/sda1"},
		subnet: subnet{id: w.subnet, zone: "us-east-1a"}})
}

// again returns whether a create returned the first instance or another.
func (w *world) again(ctx context.Context, in *ec2.RunInstancesInput) (string, error) {
	answer, err := w.ec2.RunInstances(ctx, in)
	if err != nil {
		return "", err
	}
	if *answer.Instances[0].InstanceId == w.first {
		return "the same", nil
	}
	return "another", nil
}

func (w *world) state(ctx context.Context) (string, error) {
	answer, err := w.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{w.first}})
	if err != nil {
		return "", err
	}
	if n := len(answer.Reservations); n != 1 {
		return fmt.Sprintf("%d of one", n), nil
	}
	return inShort(answer.Reservations[0].Instances[0].State.Name), nil
}

// tags returns those tags of the first instance that have one of the keys.
func (w *world) tags(ctx context.Context, keys ...string) (string, error) {
	answer, err := w.ec2.DescribeInstances(ctx, &ec2.DescribeInstancesInput{InstanceIds: []string{w.first}})
	if err != nil {
		return "", err
	}
	var all []string
	for _, tag := range answer.Reservations[0].Instances[0].Tags {
		if slices.Contains(keys, *tag.Key) {
			all = append(all, *tag.Key+"="+*tag.Value)
		}
	}
	slices.Sort(all)
	return strings.Join(all, " "), nil
}

// inShort merges the states that depend on time, which is not part of the contract.
func inShort(state types.InstanceStateName) string {
	if state == types.InstanceStateNamePending || state == types.InstanceStateNameRunning {
		return "living"
	}
	return string(state)
}

// startMoto runs moto until the test ends.
func startMoto(t *testing.T) (endpoint string) {
	t.Helper()
	path, err := exec.LookPath("moto_server")
	if err != nil {
		t.Skip("moto_server is not on PATH: the stand-in alone was asked")
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil { // moto listens on it
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(address, ":")
	var output strings.Builder
	server := exec.Command(path, "-H", "127.0.0.1", "-p", port)
	server.Env = append(server.Environ(), "MOTO_ENABLE_AMI_VALIDATION=true", "MOTO_EC2_ENABLE_INSTANCE_TYPE_VALIDATION=true")
	server.Stdout, server.Stderr = &output, &output
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
		if t.Failed() {
			t.Log(output.String())
		}
	})
	endpoint = "http://" + address
	NewWithT(t).Eventually(func() error {
		resp, err := http.Get(endpoint + "/moto-api/")
		if err == nil {
			err = resp.Body.Close()
		}
		return err
	}).WithTimeout(2*time.Minute).WithPolling(100*time.Millisecond).Should(Succeed(), "moto answers")
	return endpoint
}
