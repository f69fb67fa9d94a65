// SPDX-License-Identifier: Apache-2.0

// Package options has the flags that the manager and the command share, and what both make of them.
package options

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/registry"
	"github.com/drover-io/drover/internal/egress"
)

// Clouds say which clouds a program offers, and how it connects to them.
type Clouds struct {
	AmbientNamespaces []string
	SimulatedEndpoint string
	Simulated         bool
	CallTimeout       time.Duration
	Allow, Deny       []string
}

// AddFlags adds the flags to a set.
func (o *Clouds) AddFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.AmbientNamespaces, "ambient-credentials-namespaces", nil,
		"Namespaces whose DroverAccounts may use Drover's own credentials. Default: none.")
	f.StringVar(&o.SimulatedEndpoint, "simulated-endpoint", "",
		"Endpoint of the operator's simulated cloud, for DroverAccounts without an endpoint. It implies --simulated-cloud. Default: none.")
	f.BoolVar(&o.Simulated, "simulated-cloud", false,
		"Offer the simulated cloud to DroverAccounts. Use it only to try Drover out: an account of this cloud can send a Secret of its namespace to any endpoint.")
	f.DurationVar(&o.CallTimeout, "cloud-call-timeout", fleet.DefaultCall,
		"Timeout of a call to a cloud. If a creation was not recorded, the manager assumes after twice this time that the machine does not exist.")
	f.StringSliceVar(&o.Allow, "allow-endpoints", nil,
		"CIDRs that endpoints of users may be in although Drover denies them: by --deny-endpoints, or because they are loopback, link-local or a cloud's metadata service. Default: none.")
	f.StringSliceVar(&o.Deny, "deny-endpoints", nil,
		"CIDRs that endpoints of users must not be in, in addition to loopback, link-local and multicast addresses and the clouds' metadata services. Default: none.")
}

// Offered returns the clouds that this process offers.
func (o Clouds) Offered() []cloud.Cloud {
	if o.SimulatedEndpoint == "" && !o.Simulated {
		return registry.Clouds()
	}
	return registry.WithSimulated(o.SimulatedEndpoint)
}

// Dialer returns the dialer for all endpoints that users name.
func (o Clouds) Dialer() (*egress.Dialer, error) {
	dialer, err := egress.New(o.Allow, o.Deny)
	if err != nil {
		return nil, fmt.Errorf("--allow-endpoints, --deny-endpoints: %w", err)
	}
	return dialer, nil
}

// Accounts returns the options of the accounts, without metrics and callbacks.
func (o Clouds) Accounts(dialer *egress.Dialer) fleet.Options {
	transport := fleet.NewTransport(dialer.DialContext)
	transport.Proxy = egress.Proxy
	return fleet.Options{
		Clouds: o.Offered(), Times: fleet.TimesFor(o.CallTimeout),
		Transport: transport, Ambient: fleet.NewTransport(nil),
	}
}
