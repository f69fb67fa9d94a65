// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"context"
	"net/http"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// The driver creates a trunk for an existing port, at most one per port, and Neutron returns the
// trunk with the port. So after any crash the port leads to the trunk. Neutron separates a port
// from its trunk only while no server uses it: before the server is created and after it is gone.

// trunkID is the prefix of a trunk's ID among a machine's resources; the rest is Neutron's ID.
const trunkID = "trunk/"

// trunk is a port's trunk: "Trunk details" in Neutron's API reference.
type trunk struct {
	ID string `json:"trunk_id,omitempty"`
}

// ensureTrunks creates the missing trunks of ports that require one.
func (d *driver) ensureTrunks(ctx context.Context, req cloud.Request, wanted []infrav1.OpenStackPort, ports []port, mine *creation) error {
	for i := range wanted {
		if wanted[i].Trunk != infrav1.FeatureEnabled || ports[i].Trunk.ID != "" {
			continue
		}
		id, err := d.createTrunk(ctx, req, ports[i].ID)
		mine.recordError(err)
		if err != nil {
			return err
		}
		ports[i].Trunk.ID = id
	}
	return nil
}

// createTrunk is "Create trunk" in Neutron's API reference. It returns the trunk's ID.
func (d *driver) createTrunk(ctx context.Context, req cloud.Request, port string) (string, error) {
	op := operation{"CreateTrunk", cloud.ClassCreate, network, http.MethodPost}
	var answer struct {
		Trunk struct {
			ID string `json:"id"`
		} `json:"trunk"`
	}
	err := d.call(ctx, op, "trunks", map[string]any{"trunk": map[string]string{"port_id": port, "name": portName(req.Token)}}, &answer)
	switch {
	case cloud.CodeOf(err) == cloud.NotFound:
		return "", cloud.Errorf(cloud.InvalidSpec, "%v: a port is to be a trunk, but this Neutron does not have the service plugin \"trunk\"", err)
	case err == nil && answer.Trunk.ID == "":
		return "", unexpectedResponse(op)
	}
	return answer.Trunk.ID, err
}
