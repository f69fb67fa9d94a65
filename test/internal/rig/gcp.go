// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/cloud/simulated/simulator"
	"github.com/drover-io/drover/cloud/simulated/simulator/body"
	"github.com/drover-io/drover/cloud/simulated/wire"
	"github.com/drover-io/drover/test/internal/faultproxy"
	"github.com/drover-io/drover/test/internal/scenario"
)

// gcpEmail is the service account of every tenant on Google Cloud. The ID of its key is the
// tenant's token.
const gcpEmail = "drover@drover.iam.gserviceaccount.com"

// gcpKey is the private key of the service account.
var gcpKey = sync.OnceValues(func() (*rsa.PrivateKey, error) { return rsa.GenerateKey(rand.Reader, 2048) })

// gcp runs one stand-in for Compute Engine for each tenant in this process. Its instances are
// bodies of the simulated cloud.
type gcp struct {
	fleet  *body.Fleet
	cancel context.CancelFunc

	mu       sync.Mutex
	projects map[string]*gcpstub.Cloud // by tenant name
}

func (g *gcp) start(context.Context, *Rig) error {
	ctx, cancel := context.WithCancel(context.Background())
	g.cancel, g.projects = cancel, map[string]*gcpstub.Cloud{}
	g.fleet = body.NewFleet(ctx, body.Options{})
	return nil
}

func (g *gcp) open(_ context.Context, t *Tenant) (faultproxy.Options, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var err error
	// All tenants' machines are in one workload cluster.
	if t.GCP, err = StartGCPStub(t.Token, GCPProject(t), len(g.projects)%200+1, GCPPower(g.fleet)); err != nil {
		return faultproxy.Options{}, err
	}
	g.projects[t.Name] = t.GCP
	t.Dress = func(o client.Object) { DressGCP(o, t.Cloud.URL(), string(t.Cloud.CA()), GCPProject(t), t.Token) }
	return faultproxy.Options{Upstream: "https://" + t.GCP.Address, CA: []byte(t.GCP.CA), Parse: gcpCall}, nil
}

// StartGCPStub starts a stand-in for Compute Engine with one project, for the service account's key
// with that ID. network is the second number of its addresses.
func StartGCPStub(keyID, project string, network int, power func(gcpstub.Guest) (off func())) (*gcpstub.Cloud, error) {
	key, err := gcpKey()
	if err != nil {
		return nil, err
	}
	return gcpstub.Start(gcpstub.Options{
		Email: gcpEmail, Key: &key.PublicKey, KeyID: keyID, Project: project, Network: network,
		Boot: 150 * time.Millisecond, Stop: 200 * time.Millisecond, Parts: 100 * time.Millisecond, Keep: true, Power: power,
	})
}

// gcpCall names a call of Compute Engine by its method and collection.
func gcpCall(c *faultproxy.Call, r *http.Request, _ []byte) { c.Verb = gcpstub.Operation(r) }

// GCPProject returns the project of a tenant on Google Cloud.
func GCPProject(t *Tenant) string { return "nodes-" + t.Name }

// GCPPower returns a function that runs guests of a stand-in for Compute Engine as bodies of the
// fleet.
func GCPPower(fleet *body.Fleet) func(gcpstub.Guest) (off func()) {
	return func(guest gcpstub.Guest) (off func()) {
		b := fleet.New(body.Machine{
			InstanceID: guest.Name, Region: gcpstub.Region, Zone: guest.Zone, Hostname: guest.Name, IP: guest.IP, CPU: guest.CPUs,
			MemoryMiB: guest.MemoryMiB, DiskGiB: 10,
			Arch: guest.Architecture, OS: "linux", UserData: guest.UserData(),
		})
		b.Start()
		return b.Stop
	}
}

// GCPCredentials returns the content of an account's Secret: the service account's key, with an ID.
func GCPCredentials(keyID string) (map[string]string, error) {
	key, err := gcpKey()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "universe_domain": gcpstub.Universe, "client_email": gcpEmail, "private_key_id": keyID,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	})
	return map[string]string{"credentials": string(text)}, err
}

// DressGCP turns an object for the simulated cloud into one for a stand-in for Compute Engine
// behind that URL, whose certificate is the CA's.
func DressGCP(o client.Object, url, ca, project, keyID string) {
	switch o := o.(type) {
	case *corev1.Secret:
		if _, ok := o.Data["token"]; ok {
			data := map[string][]byte{}
			made, _ := GCPCredentials(keyID) // the stand-in has the key, too
			for key, value := range made {
				data[key] = []byte(value)
			}
			scenario.FillCredentials(o, "gcp", data)
		}
	case *infrav1.DroverAccount:
		o.Spec.Cloud.Simulated = nil
		o.Spec.Cloud.GCP = &infrav1.GCPAccount{
			ProjectID: project, Region: gcpstub.Region, UniverseDomain: gcpstub.Universe, Endpoint: url, CABundle: ca,
		}
		hurry(o)
	case *infrav1.DroverMachineTemplate:
		o.Spec.Template.Spec.Cloud.Simulated = nil
		o.Spec.Template.Spec.Cloud.GCP = &infrav1.GCPMachine{
			MachineType: "e2-standard-2", Image: infrav1.GCPImage{Name: gcpstub.Image},
			NetworkInterfaces: []infrav1.GCPNetworkInterface{{Subnetwork: gcpstub.Subnet}},
		}
	}
}

// books returns the records of the stand-ins, in the format of the simulated cloud.
func (g *gcp) books(context.Context) (s simulator.Snapshot, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	states := map[string]wire.State{
		"PROVISIONING": wire.Pending, "STAGING": wire.Pending, "RUNNING": wire.Running, "TERMINATED": wire.Stopped, "STOPPING": wire.Stopping,
		"Gone": wire.Terminated,
	}
	for tenant, project := range g.projects {
		for _, e := range project.Books() {
			if e.State == "Refused" { // it never was a VM
				continue
			}
			r := wire.Resource{Kind: wire.Instance, ID: e.Name, Name: e.Name, State: states[e.State], Tags: e.Labels, AttachedTo: e.Attached}
			if e.State == "" {
				r.Kind = wire.Disk
			}
			if machine, ok := strings.CutPrefix(e.Description, "DroverMachine "); ok { // no label can hold it
				r.Tags[cloud.TagMachine] = machine
			}
			s.Resources = append(s.Resources, simulator.SnapshotResource{Resource: r, Account: tenant})
		}
	}
	return s, nil
}

// remember does nothing: Google forgets deleted instances at once.
func (g *gcp) remember(context.Context, time.Duration) error { return nil }

func (g *gcp) stop() error {
	if g.cancel == nil {
		return nil
	}
	for _, project := range g.projects {
		project.Close()
	}
	g.cancel()
	g.fleet.Wait()
	return nil
}
