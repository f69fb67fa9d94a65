// SPDX-License-Identifier: Apache-2.0

// azure-client has Microsoft's own client for Go call Azure's API of load balancers, or what stands
// in for it, and prints what it reads as JSON. The standard input is JSON, too. It reads a load
// balancer, makes another one like it, changes and deletes that, and follows each operation to its
// end.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/arm"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/cloud"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/network/armnetwork/v6"
)

// input is what there is to read.
type input struct {
	// Address is where all names lead, with a certificate that CA signed.
	Address, CA string
	// Endpoint and Authority are Resource Manager's and the login's, Version is that of the API.
	Endpoint, Authority, Version      string
	Tenant, Client, Secret            string
	Subscription, Group, Name, Target string
}

// balancer is what the client reads of a load balancer.
type balancer struct {
	Name, State, SKU, Address, Network, Probe, ETag string
	Tags                                            map[string]string
	Zones, Targets                                  []string
	Port, Idle                                      int32
	NoSNAT                                          bool
}

// output is what the client reads.
type output struct {
	// Listed are the load balancers of the group, Read is the one of the input.
	Listed []balancer
	Read   balancer
	// Made is the other one after its creation, Changed after its target was added. Healthy are the
	// healthy targets of the one of the input.
	Made, Changed balancer
	Healthy       []string
	// Refused is the status of a change with another ETag, Gone that of a read after the deletion.
	Refused, Gone int
}

// clients are those of one subscription.
type clients struct {
	in        *input
	balancers *armnetwork.LoadBalancersClient
	pools     *armnetwork.LoadBalancerBackendAddressPoolsClient
	rules     *armnetwork.LoadBalancerLoadBalancingRulesClient
	addresses *armnetwork.PublicIPAddressesClient
}

func main() {
	log.SetFlags(0)
	var in input
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		log.Fatal(err)
	}
	c, err := connect(&in)
	if err != nil {
		log.Fatal(err)
	}
	var out output
	if err := c.run(context.Background(), &out); err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		log.Fatal(err)
	}
}

func connect(in *input) (*clients, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(in.CA))
	transport := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, in.Address)
		},
		TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
	}}
	options := azcore.ClientOptions{
		APIVersion: in.Version, Transport: transport, Retry: policy.RetryOptions{MaxRetries: -1},
		Cloud: cloud.Configuration{ActiveDirectoryAuthorityHost: in.Authority, Services: map[cloud.ServiceName]cloud.ServiceConfiguration{
			cloud.ResourceManager: {Endpoint: in.Endpoint, Audience: in.Endpoint},
		}},
	}
	login := options
	login.APIVersion = ""
	credential, err := azidentity.NewClientSecretCredential(in.Tenant, in.Client, in.Secret,
		&azidentity.ClientSecretCredentialOptions{ClientOptions: login, DisableInstanceDiscovery: true})
	if err != nil {
		return nil, err
	}
	factory, err := armnetwork.NewClientFactory(in.Subscription, credential,
		&arm.ClientOptions{ClientOptions: options, DisableRPRegistration: true})
	if err != nil {
		return nil, err
	}
	return &clients{
		in: in, balancers: factory.NewLoadBalancersClient(), pools: factory.NewLoadBalancerBackendAddressPoolsClient(),
		rules: factory.NewLoadBalancerLoadBalancingRulesClient(), addresses: factory.NewPublicIPAddressesClient(),
	}, nil
}

// often is the SDK's shortest time between two questions.
var often = &runtime.PollUntilDoneOptions{Frequency: time.Second}

func (c *clients) run(ctx context.Context, out *output) error {
	for pager := c.balancers.NewListPager(c.in.Group, nil); pager.More(); {
		page, err := pager.NextPage(ctx)
		if err != nil {
			return err
		}
		for _, lb := range page.Value {
			out.Listed = append(out.Listed, c.describe(ctx, lb))
		}
	}
	read, err := c.balancers.Get(ctx, c.in.Group, c.in.Name, nil)
	if err != nil {
		return err
	}
	out.Read = c.describe(ctx, &read.LoadBalancer)
	health, err := c.rules.BeginHealth(ctx, c.in.Group, c.in.Name, *read.Properties.LoadBalancingRules[0].Name, nil)
	if err != nil {
		return err
	}
	answer, err := health.PollUntilDone(ctx, often)
	if err != nil {
		return err
	}
	for _, a := range answer.LoadBalancerBackendAddresses {
		if *a.State == "Up" {
			out.Healthy = append(out.Healthy, *a.IPAddress)
		}
	}
	return c.live(ctx, &read.LoadBalancer, out)
}

// live takes another load balancer like the one of the input through its life.
func (c *clients) live(ctx context.Context, like *armnetwork.LoadBalancer, out *output) error {
	name := c.in.Name + "-2"
	made, err := c.balancers.BeginCreateOrUpdate(ctx, c.in.Group, name, another(like, c.in.Name, name), nil)
	if err != nil {
		return err
	}
	is, err := made.PollUntilDone(ctx, often)
	if err != nil {
		return err
	}
	out.Made = c.describe(ctx, &is.LoadBalancer)
	pool := is.Properties.BackendAddressPools[0]
	pool.Properties.LoadBalancerBackendAddresses = append(pool.Properties.LoadBalancerBackendAddresses,
		&armnetwork.LoadBalancerBackendAddress{Name: &c.in.Target,
			Properties: &armnetwork.LoadBalancerBackendAddressPropertiesFormat{IPAddress: &c.in.Target}})
	change := armnetwork.BackendAddressPool{Properties: &armnetwork.BackendAddressPoolPropertiesFormat{
		VirtualNetwork: pool.Properties.VirtualNetwork, LoadBalancerBackendAddresses: pool.Properties.LoadBalancerBackendAddresses,
	}}
	stale := policy.WithHTTPHeader(ctx, http.Header{"If-Match": {out.Read.ETag + "x"}})
	_, err = c.pools.BeginCreateOrUpdate(stale, c.in.Group, name, *pool.Name, change, nil)
	out.Refused = statusOf(err)
	matching := policy.WithHTTPHeader(ctx, http.Header{"If-Match": {*pool.Etag}})
	changed, err := c.pools.BeginCreateOrUpdate(matching, c.in.Group, name, *pool.Name, change, nil)
	if err != nil {
		return err
	}
	if _, err := changed.PollUntilDone(ctx, often); err != nil {
		return err
	}
	now, err := c.balancers.Get(ctx, c.in.Group, name, nil)
	if err != nil {
		return err
	}
	out.Changed = c.describe(ctx, &now.LoadBalancer)
	deletion, err := c.balancers.BeginDelete(ctx, c.in.Group, name, nil)
	if err != nil {
		return err
	}
	if _, err := deletion.PollUntilDone(ctx, often); err != nil {
		return err
	}
	_, err = c.balancers.Get(ctx, c.in.Group, name, nil)
	out.Gone = statusOf(err)
	return nil
}

// another returns what makes an internal load balancer like one that was read.
func another(like *armnetwork.LoadBalancer, name, other string) armnetwork.LoadBalancer {
	p := like.Properties
	in := func(id *string) *armnetwork.SubResource {
		id2 := strings.Replace(*id, "/loadBalancers/"+name+"/", "/loadBalancers/"+other+"/", 1)
		return &armnetwork.SubResource{ID: &id2}
	}
	rule := *p.LoadBalancingRules[0].Properties
	rule.FrontendIPConfiguration, rule.BackendAddressPool, rule.Probe = in(rule.FrontendIPConfiguration.ID), in(rule.BackendAddressPool.ID),
		in(rule.Probe.ID)
	front, pool := p.FrontendIPConfigurations[0], p.BackendAddressPools[0]
	dynamic := armnetwork.IPAllocationMethodDynamic
	return armnetwork.LoadBalancer{Location: like.Location, SKU: like.SKU, Tags: like.Tags,
		Properties: &armnetwork.LoadBalancerPropertiesFormat{
			FrontendIPConfigurations: []*armnetwork.FrontendIPConfiguration{{Name: front.Name, Zones: front.Zones,
				Properties: &armnetwork.FrontendIPConfigurationPropertiesFormat{
					PrivateIPAllocationMethod: &dynamic, Subnet: &armnetwork.Subnet{ID: front.Properties.Subnet.ID},
				}}},
			BackendAddressPools: []*armnetwork.BackendAddressPool{{Name: pool.Name, Properties: &armnetwork.BackendAddressPoolPropertiesFormat{
				VirtualNetwork: pool.Properties.VirtualNetwork, LoadBalancerBackendAddresses: pool.Properties.LoadBalancerBackendAddresses,
			}}},
			LoadBalancingRules: []*armnetwork.LoadBalancingRule{{Name: p.LoadBalancingRules[0].Name, Properties: &rule}},
			Probes:             []*armnetwork.Probe{{Name: p.Probes[0].Name, Properties: p.Probes[0].Properties}},
		}}
}

// describe returns what is true of a load balancer with one of each part.
func (c *clients) describe(ctx context.Context, lb *armnetwork.LoadBalancer) balancer {
	p := lb.Properties
	front, pool, rule, probe := p.FrontendIPConfigurations[0], p.BackendAddressPools[0], p.LoadBalancingRules[0].Properties,
		p.Probes[0].Properties
	b := balancer{
		Name: *lb.Name, State: string(*p.ProvisioningState), SKU: string(*lb.SKU.Name), ETag: *pool.Etag, Tags: map[string]string{},
		Network: *pool.Properties.VirtualNetwork.ID, Probe: string(*probe.Protocol) + " " + *probe.RequestPath,
		Port: *rule.FrontendPort, Idle: *rule.IdleTimeoutInMinutes, NoSNAT: rule.DisableOutboundSnat != nil && *rule.DisableOutboundSnat,
	}
	for key, value := range lb.Tags {
		b.Tags[key] = *value
	}
	for _, zone := range front.Zones {
		b.Zones = append(b.Zones, *zone)
	}
	for _, a := range pool.Properties.LoadBalancerBackendAddresses {
		b.Targets = append(b.Targets, *a.Properties.IPAddress)
	}
	slices.Sort(b.Targets)
	if public := front.Properties.PublicIPAddress; public != nil {
		id := *public.ID
		ip, err := c.addresses.Get(ctx, c.in.Group, id[strings.LastIndexByte(id, '/')+1:], nil)
		if err != nil {
			log.Fatal(err)
		}
		b.Address = *ip.Properties.IPAddress
	} else {
		b.Address = *front.Properties.PrivateIPAddress
	}
	return b
}

// statusOf returns the HTTP status of the SDK's error.
func statusOf(err error) int {
	var response *azcore.ResponseError
	if errors.As(err, &response) {
		return response.StatusCode
	}
	return 0
}
