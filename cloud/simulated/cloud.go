// SPDX-License-Identifier: Apache-2.0

// Package simulated is the driver for the simulated cloud: it turns requests into calls of the wire
// API, and answers into resources. It imports no Kubernetes client, and never the simulator, which
// is a separate process.
package simulated

import (
	"context"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
	"github.com/drover-io/drover/cloud/simulated/wire"
)

const (
	// tokenKey is the key in the credentials Secret.
	tokenKey = "token"
	// tokenVariable is the variable with the operator's own (ambient) token.
	tokenVariable = "DROVER_SIMULATED_TOKEN"
	// defaultRegion is also in the CRD, in the rule that the region can't be changed.
	defaultRegion = "sim-1"
	// maxBatch keeps a call's body and answer far below the limits of both sides.
	maxBatch = 500
)

// union selects the simulated cloud's members of DroverAccount and DroverMachine.
var union = driverkit.Fields[infrav1.SimulatedAccount, infrav1.SimulatedMachine]{
	Account:      func(a *infrav1.DroverAccountSpec) *infrav1.SimulatedAccount { return a.Cloud.Simulated },
	Machine:      func(m *infrav1.DroverMachineFields) *infrav1.SimulatedMachine { return m.Cloud.Simulated },
	CheckAccount: validateAccount,
}

// Cloud returns the simulated cloud's entry in the registry.
func Cloud(endpoint string) cloud.Cloud {
	return cloud.Cloud{
		Name:     "simulated",
		Union:    union,
		New:      func(cfg cloud.Config) (cloud.Driver, error) { return newDriver(cfg, endpoint) },
		Endpoint: func(spec *infrav1.DroverAccountSpec) string { return spec.Cloud.Simulated.Endpoint },
		Limits: cloud.Limits{
			Create: cloud.Limit{PerSecond: 50, Burst: 100},
			Delete: cloud.Limit{PerSecond: 20, Burst: 50},
			Read:   cloud.Limit{PerSecond: 20, Burst: 100},
		},
		Traits:        cloud.Traits{ReadLag: 10 * time.Second},
		CheckUserData: driverkit.MaxUserData(wire.MaxUserData),
		Batch:         cloud.Batch{Read: maxBatch, Delete: maxBatch},
		ProviderID: func(*infrav1.DroverAccountSpec) string {
			return providerID("{{ v1.availability_zone }}", "{{ v1.instance_id }}")
		},
	}
}

func validateAccount(spec *infrav1.DroverAccountSpec, path *field.Path) field.ErrorList {
	a := spec.Cloud.Simulated
	if a.Endpoint == "" {
		return nil
	}
	path = path.Child("cloud", "simulated", "endpoint")
	if msg := endpointFault(a.Endpoint); msg != "" {
		return field.ErrorList{field.Invalid(path, a.Endpoint, msg)}
	}
	if spec.CredentialsRef.Name == "" {
		return field.ErrorList{field.Forbidden(path, "a custom endpoint needs its own credentials: set credentialsRef")}
	}
	return nil
}

// endpointFault returns what is wrong with an endpoint, or "".
func endpointFault(endpoint string) string {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https"):
		return "must be http://host:port or https://host:port"
	case u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "":
		return "must be a URL without user, path, query and fragment"
	}
	return ""
}

// newDriver returns an account's driver. operator is the operator's own endpoint, for accounts
// without one.
func newDriver(cfg cloud.Config, operator string) (cloud.Driver, error) {
	if cfg.Account == nil || cfg.Account.Cloud.Simulated == nil {
		return nil, cloud.Invalid("the account's spec.cloud.simulated is not set")
	}
	endpoint := cfg.Account.Cloud.Simulated.Endpoint
	if endpoint != "" && cfg.Credentials == nil {
		return nil, cloud.Invalid("a custom endpoint needs its own credentials")
	}
	if endpoint == "" {
		endpoint = operator
	}
	if endpoint == "" {
		return nil, cloud.Invalid("no endpoint: set spec.cloud.simulated.endpoint or the flag --simulated-endpoint")
	}
	if msg := endpointFault(endpoint); msg != "" {
		return nil, cloud.Invalid("the endpoint %s", msg)
	}
	token, err := tokenOf(cfg.Credentials)
	if err != nil {
		return nil, err
	}
	transport, err := cfg.Connect(nil)
	if err != nil {
		return nil, err
	}
	region := cfg.Account.Cloud.Simulated.Region
	if region == "" {
		region = defaultRegion
	}
	return &driver{
		endpoint: strings.TrimRight(endpoint, "/"),
		region:   region,
		token:    token,
		api: driverkit.JSON{
			Client: driverkit.Client(transport), Secrets: driverkit.NewRedactor(token), Cloud: "a simulated cloud",
			Settings: "spec.cloud.simulated.endpoint",
		},
	}, nil
}

// FailureDomains implements cloud.Placer.
func (d *driver) FailureDomains(_ context.Context, fields *infrav1.DroverMachineFields) ([]string, error) {
	machine, err := union.MachineOf(fields)
	if err != nil || machine.Zone == "" {
		return nil, err
	}
	return []string{machine.Zone}, nil
}

// tokenOf returns the bearer token from the Secret, or for ambient credentials the operator's from
// the environment.
func tokenOf(credentials map[string][]byte) (string, error) {
	token, from := string(credentials[tokenKey]), "the credentials Secret's key \""+tokenKey+"\""
	if credentials == nil {
		token, from = os.Getenv(tokenVariable), "the manager's variable "+tokenVariable
	}
	token = strings.TrimSpace(token)
	if token == "" {
		return "", cloud.Errorf(cloud.Unauthorized, "%s is missing or empty", from)
	}
	if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", cloud.Errorf(cloud.Unauthorized, "%s contains invalid characters", from)
	}
	return token, nil
}

const providerScheme = "simulated:///"

func providerID(zone, id string) string { return providerScheme + zone + "/" + id }
