// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"testing"
	"time"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/gcp"
	"github.com/drover-io/drover/cloud/gcp/gcpstub"
	"github.com/drover-io/drover/internal/test/engine"
)

const email = "drover@" + gcpstub.Project + ".iam.gserviceaccount.com"

// credentials returns a service account key, and its public part.
func credentials(t *testing.T) (map[string][]byte, *rsa.PublicKey) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	private := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	text, err := json.Marshal(map[string]string{"type": "service_account", "client_email": email, "private_key": string(private)})
	if err != nil {
		t.Fatal(err)
	}
	return map[string][]byte{"credentials": text}, &key.PublicKey
}

// fleetOfGCP is an account of the engine's, with Google's published limits.
func fleetOfGCP(t *testing.T, n int) counted {
	secret, public := credentials(t)
	stub := gcpstub.New(t, gcpstub.Options{Email: email, Key: public, Boot: 10 * time.Second, Stop: 30 * time.Second})
	config := fleet.AccountConfig{
		Spec: infrav1.DroverAccountSpec{
			CredentialsRef: infrav1.LocalReference{Name: "c"},
			Cloud:          infrav1.AccountCloud{GCP: &infrav1.GCPAccount{ProjectID: gcpstub.Project, Region: gcpstub.Region}},
		},
		Credentials: secret,
	}
	config.Spec.Inventory.IdleSeconds, config.Spec.Inventory.ActiveSeconds = 60, 5
	a := engine.Start(t, fleet.Options{Clouds: []cloud.Cloud{gcp.Cloud()}, Times: fleet.TimesFor(30 * time.Second),
		Transport: stub.Transport()}, config)
	machine := &infrav1.DroverMachineFields{Cloud: infrav1.MachineCloud{GCP: &infrav1.GCPMachine{
		MachineType: "e2-standard-2", Image: infrav1.GCPImage{Name: gcpstub.Image},
		NetworkInterfaces: []infrav1.GCPNetworkInterface{{Subnetwork: gcpstub.Subnet}},
	}}}
	return counted{a, stub, machine, func(i int) []string { return gcpstub.Zones()[i%3:][:1] }, n * 115 / 100}
}
