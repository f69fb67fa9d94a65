// SPDX-License-Identifier: Apache-2.0

package ec2stub

import (
	"cmp"
	"encoding/json"
	"encoding/xml"
	"io"
	"strings"
	"time"
)

// AWS's XML, as far as the driver reads it. The EC2 API Reference describes each answer.

type runResponse struct {
	Instances []instanceItem `xml:"instancesSet>item"`
}

type instancesResponse struct {
	Reservations []reservationItem `xml:"reservationSet>item"`
	NextToken    string            `xml:"nextToken,omitempty"`
}

type reservationItem struct {
	Instances []instanceItem `xml:"instancesSet>item"`
}

type instanceItem struct {
	ID         string      `xml:"instanceId"`
	Image      string      `xml:"imageId"`
	Size       string      `xml:"instanceType"`
	State      stateItem   `xml:"instanceState"`
	Reason     *reasonItem `xml:"stateReason,omitempty"`
	PrivateDNS string      `xml:"privateDnsName"`
	PrivateIP  string      `xml:"privateIpAddress,omitempty"`
	LaunchTime string      `xml:"launchTime"`
	Zone       string      `xml:"placement>availabilityZone"`
	Lifecycle  string      `xml:"instanceLifecycle,omitempty"`
	Tags       []tagItem   `xml:"tagSet>item"`
	Interfaces []struct{}  `xml:"networkInterfaceSet>item"`
}

type statusResponse struct {
	Statuses  []statusItem `xml:"instanceStatusSet>item"`
	NextToken string       `xml:"nextToken,omitempty"`
}

type statusItem struct {
	ID       string      `xml:"instanceId"`
	Events   []eventItem `xml:"eventsSet>item"`
	Instance string      `xml:"instanceStatus>status"`
	System   string      `xml:"systemStatus>status"`
}

type eventItem struct {
	Code        string `xml:"code"`
	Description string `xml:"description"`
	NotBefore   string `xml:"notBefore"`
}

type stateItem struct {
	Name string `xml:"name"`
}

type reasonItem struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

type tagItem struct {
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

type terminateResponse struct {
	Instances []changeItem `xml:"instancesSet>item"`
}

type changeItem struct {
	ID     string    `xml:"instanceId"`
	Before stateItem `xml:"previousState"`
	Now    stateItem `xml:"currentState"`
}

type consoleResponse struct {
	ID     string `xml:"instanceId"`
	Time   string `xml:"timestamp"`
	Output string `xml:"output,omitempty"`
}

type volumesResponse struct {
	Volumes   []volumeItem `xml:"volumeSet>item"`
	NextToken string       `xml:"nextToken,omitempty"`
}

type volumeItem struct {
	ID          string           `xml:"volumeId"`
	Status      string           `xml:"status"`
	Made        string           `xml:"createTime"`
	Attachments []attachmentItem `xml:"attachmentSet>item"`
	Tags        []tagItem        `xml:"tagSet>item"`
}

type interfacesResponse struct {
	Interfaces []interfaceItem `xml:"networkInterfaceSet>item"`
	NextToken  string          `xml:"nextToken,omitempty"`
}

type interfaceItem struct {
	ID         string          `xml:"networkInterfaceId"`
	Status     string          `xml:"status"`
	Attachment *attachmentItem `xml:"attachment,omitempty"`
	Tags       []tagItem       `xml:"tagSet>item"`
}

type attachmentItem struct {
	Instance            string `xml:"instanceId"`
	DeleteOnTermination bool   `xml:"deleteOnTermination"`
}

type doneResponse struct {
	Done bool `xml:"return"`
}

type imagesResponse struct {
	Images []imageItem `xml:"imagesSet>item"`
}

type imageItem struct {
	ID           string       `xml:"imageId"`
	Name         string       `xml:"name"`
	Owner        string       `xml:"imageOwnerId"`
	Made         string       `xml:"creationDate"`
	Architecture string       `xml:"architecture"`
	State        string       `xml:"imageState"`
	RootType     string       `xml:"rootDeviceType"`
	RootDevice   string       `xml:"rootDeviceName"`
	Devices      []deviceItem `xml:"blockDeviceMapping>item"`
}

type deviceItem struct {
	Name                string `xml:"deviceName"`
	Snapshot            string `xml:"ebs>snapshotId"`
	GiB                 int    `xml:"ebs>volumeSize"`
	Type                string `xml:"ebs>volumeType"`
	DeleteOnTermination bool   `xml:"ebs>deleteOnTermination"`
}

func (i *imageItem) fill() {
	i.State, i.RootType, i.RootDevice = "available", "ebs", rootDevice
	i.Devices = []deviceItem{{i.RootDevice, "snap-01", rootGiB, "gp3", true}}
	if i.ID == KeepingImage {
		i.Devices = append(i.Devices, deviceItem{keptDevice, "snap-02", 1, "gp3", false})
	}
}

type typesResponse struct {
	Types []typeAnswer `xml:"instanceTypeSet>item"`
}

type typeItem struct {
	Name, Architecture    string
	CPUs, MemoryMiB       int
	Interfaces, Addresses int
	GPUs                  []gpuItem
	// Plain supports no encrypted disks, Fixed no CPU options. Cards is the number of network cards
	// besides the first. If it is above 0, each card, including the first, can have an Elastic
	// Fabric Adapter.
	Plain, Fixed bool
	Cards        int
}

type typeAnswer struct {
	Name          string    `xml:"instanceType"`
	Architectures []string  `xml:"processorInfo>supportedArchitectures>item"`
	CPUs          int       `xml:"vCpuInfo>defaultVCpus"`
	MemoryMiB     int       `xml:"memoryInfo>sizeInMiB"`
	Interfaces    int       `xml:"networkInfo>maximumNetworkInterfaces"`
	Addresses     int       `xml:"networkInfo>ipv4AddressesPerInterface"`
	GPUs          []gpuItem `xml:"gpuInfo>gpus>item"`
}

type gpuItem struct {
	Name  string `xml:"name"`
	Maker string `xml:"manufacturer"`
	Count int    `xml:"count"`
}

func (t typeItem) answer() typeAnswer {
	return typeAnswer{Name: t.Name, Architectures: []string{t.Architecture}, CPUs: t.CPUs, MemoryMiB: t.MemoryMiB,
		Interfaces: t.Interfaces, Addresses: t.Addresses, GPUs: t.GPUs}
}

type subnetsResponse struct {
	Subnets []subnetItem `xml:"subnetSet>item"`
}

type subnetItem struct {
	ID   string `xml:"subnetId"`
	Zone string `xml:"availabilityZone"`
	VPC  string `xml:"vpcId"`
	Free int    `xml:"availableIpAddressCount"`
	tags map[string]string
}

type groupsResponse struct {
	Groups []groupItem `xml:"securityGroupInfo>item"`
}

type groupItem struct {
	ID   string    `xml:"groupId"`
	Name string    `xml:"groupName"`
	VPC  string    `xml:"vpcId"`
	Tags []tagItem `xml:"tagSet>item"`
	tags map[string]string
}

type zonesResponse struct {
	Zones []zoneItem `xml:"availabilityZoneInfo>item"`
}

type zoneItem struct {
	Name  string `xml:"zoneName"`
	State string `xml:"zoneState"`
}

type roleAnswer struct {
	Credentials roleCredentials
}

type identityAnswer struct {
	Account string
	ARN     string `xml:"Arn"`
}

type roleCredentials struct {
	AccessKeyID     string `xml:"AccessKeyId"`
	SecretAccessKey string `xml:"SecretAccessKey"`
	SessionToken    string `xml:"SessionToken"`
	Expiration      string `xml:"Expiration"`
}

type errorItem struct {
	Code    string `xml:"Code"`
	Message string `xml:"Message"`
}

func toTags(tags map[string]string) (all []tagItem) {
	for key, value := range tags {
		all = append(all, tagItem{key, value})
	}
	return all
}

func (c *Cloud) item(i *instance) instanceItem {
	out := instanceItem{
		ID: i.id, Image: i.image, Size: i.size, State: stateItem{c.stateOf(i)}, Zone: i.zone, Tags: toTags(i.tags),
		LaunchTime: i.made.UTC().Format(time.RFC3339), PrivateIP: i.ip, PrivateDNS: i.name(),
	}
	if i.spot {
		out.Lifecycle = "spot"
	}
	if out.State.Name == terminated {
		out.PrivateIP, out.PrivateDNS = "", ""
		words := cmp.Or(i.reason, "Client.UserInitiatedShutdown: User initiated shutdown")
		code, _, _ := strings.Cut(words, ":")
		out.Reason = &reasonItem{Code: code, Message: words}
	}
	return out
}

func (l *leftover) volume() volumeItem {
	out := volumeItem{ID: l.id, Status: l.status(), Made: l.made.UTC().Format(time.RFC3339), Tags: toTags(l.tags)}
	if l.attached != "" {
		out.Attachments = []attachmentItem{{Instance: l.attached}}
	}
	return out
}

func (l *leftover) networkInterface() interfaceItem {
	out := interfaceItem{ID: l.id, Status: l.status(), Tags: toTags(l.tags)}
	if l.attached != "" {
		out.Attachment = &attachmentItem{Instance: l.attached}
	}
	return out
}

// encode writes an answer or an error in the service's format.
func encode(w io.Writer, in call, out any, fail *failure) {
	switch {
	case (in.service == "ssm" || in.service == "sqs") && fail != nil:
		out = map[string]string{"__type": fail.code, "message": fail.message}
		fallthrough
	case in.service == "ssm", in.service == "sqs":
		_ = json.NewEncoder(w).Encode(out) // to a buffer
		return
	case fail != nil && (in.service == "sts" || in.service == balancing):
		out = struct {
			XMLName xml.Name  `xml:"ErrorResponse"`
			Error   errorItem `xml:"Error"`
		}{Error: errorItem{fail.code, fail.message}}
	case fail != nil:
		out = struct {
			XMLName xml.Name  `xml:"Response"`
			Error   errorItem `xml:"Errors>Error"`
			Request string    `xml:"RequestID"`
		}{Error: errorItem{fail.code, fail.message}, Request: "request-1"}
	case in.service == "sts", in.service == balancing:
		_, _ = io.WriteString(w, xml.Header)
		root := xml.StartElement{Name: xml.Name{Local: in.op + "Response"}}
		encoder := xml.NewEncoder(w)
		_ = encoder.EncodeToken(root)
		_ = encoder.EncodeElement(out, xml.StartElement{Name: xml.Name{Local: in.op + "Result"}})
		_ = encoder.EncodeToken(root.End())
		_ = encoder.Flush()
		return
	}
	_, _ = io.WriteString(w, xml.Header)
	encoder := xml.NewEncoder(w)
	if fail != nil {
		_ = encoder.Encode(out)
		return
	}
	_ = encoder.EncodeElement(out, xml.StartElement{Name: xml.Name{Space: "http://ec2.amazonaws.com/doc/2016-11-15/", Local: in.op +
		"Response"}})
}
