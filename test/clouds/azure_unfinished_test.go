// SPDX-License-Identifier: Apache-2.0

package clouds

import (
	"encoding/json"
	"errors"
	"net/http"
	"testing"
	"time"

	. "github.com/onsi/gomega"

	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/azure/armstub"
	"github.com/drover-io/drover/cloud/fleet"
)

// TestUnfinished: when Azure accepts a machine and then refuses a read of it, the account says that
// something may exist. When Azure refuses the machine itself, it does not.
func TestUnfinished(t *testing.T) {
	needs(t, *where == "azure")
	accepted, err := json.Marshal(map[string]any{
		"id": "/x", "name": "m-1", "location": armstub.Location,
		"properties": map[string]any{"provisioningState": "Failed", "timeCreated": time.Now()},
		"tags":       map[string]string{cloud.TagToken: "token", cloud.TagOwnership: "owner"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for operation, made := range map[string]int{"PUT virtualMachines": 0, "GET virtualMachines": 1} {
		t.Run(operation, func(t *testing.T) {
			g := NewWithT(t)
			stub := armstub.New(t, armstub.Options{Tenant: tenant, Client: "client", Secret: "secret"})
			a := account(t, stub)
			_, err := a.Probe(t.Context())
			g.Expect(err).NotTo(HaveOccurred())
			stub.Inject(armstub.Fault{Operation: operation, Code: "TooManyRequests", Status: http.StatusTooManyRequests})
			stub.Inject(armstub.Fault{Operation: "PUT virtualMachines", Status: http.StatusCreated, Body: string(accepted), After: true})
			_, err = a.Ensure(t.Context(), cloud.Request{
				Token: "token", OwnershipID: "owner", Namespace: "team", Name: "m-1", UserData: []byte("#cloud-config\n"),
				Spec: smallest(),
			}, nil)
			g.Expect(cloud.CodeOf(err)).To(Equal(cloud.Throttled), "%v", err)
			g.Expect(stub.Made()).To(Equal(made))
			g.Expect(errors.As(err, new(*fleet.Unfinished))).To(Equal(made == 1))
		})
	}
}
