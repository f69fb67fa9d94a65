// SPDX-License-Identifier: Apache-2.0

package cmd

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/registry"
	"github.com/drover-io/drover/internal/egress"
)

// cloudOptions say which clouds a command offers, and how it connects to them.
type cloudOptions struct {
	ambientNamespaces []string
	simulatedEndpoint string
	simulated         bool
	callTimeout       time.Duration
	allow, deny       []string
}

func (o *cloudOptions) flags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.ambientNamespaces, "ambient-credentials-namespaces", nil, "Namespaces whose CloudAccounts may use Drover's own credentials. Default: none.")
	f.StringVar(&o.simulatedEndpoint, "simulated-endpoint", "", "Endpoint of the operator's simulated cloud, for CloudAccounts without an endpoint. It implies --simulated-cloud. Default: none.")
	f.BoolVar(&o.simulated, "simulated-cloud", false, "Offer the simulated cloud to CloudAccounts. Use it only to try Drover out: an account of this cloud can send a Secret of its namespace to any endpoint.")
	f.DurationVar(&o.callTimeout, "cloud-call-timeout", fleet.DefaultCall, "Timeout of a call to a cloud. If a creation was not recorded, the manager assumes after twice this time that the machine does not exist.")
	f.StringSliceVar(&o.allow, "allow-endpoints", nil, "CIDRs that endpoints of users may be in although Drover denies them: by --deny-endpoints, or because they are loopback, link-local or a cloud's metadata service. Default: none.")
	f.StringSliceVar(&o.deny, "deny-endpoints", nil, "CIDRs that endpoints of users must not be in, in addition to loopback, link-local and multicast addresses and the clouds' metadata services. Default: none.")
}

// offered returns the clouds that this process offers.
func offered(o cloudOptions) []cloud.Cloud {
	if o.simulatedEndpoint == "" && !o.simulated {
		return registry.Clouds()
	}
	return registry.WithSimulated(o.simulatedEndpoint)
}

// newDialer returns the dialer for all endpoints that users name.
func newDialer(o cloudOptions) (*egress.Dialer, error) {
	dialer, err := egress.New(o.allow, o.deny)
	if err != nil {
		return nil, fmt.Errorf("--allow-endpoints, --deny-endpoints: %w", err)
	}
	return dialer, nil
}

// accountOptions returns the options of the accounts, without metrics and callbacks.
func accountOptions(o cloudOptions, dialer *egress.Dialer) fleet.Options {
	transport := fleet.NewTransport(dialer.DialContext)
	transport.Proxy = egress.Proxy
	return fleet.Options{
		Clouds: offered(o), Times: fleet.TimesFor(o.callTimeout),
		Transport: transport, Ambient: fleet.NewTransport(nil),
	}
}
