// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"

	"github.com/vmware/govmomi/pbm"
	pbmmethods "github.com/vmware/govmomi/pbm/methods"
	pbmtypes "github.com/vmware/govmomi/pbm/types"
	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
)

// storage resolves where the disks go: datastore, datastore cluster and storage policy.
func (s *session) storage(ctx context.Context, p *plan, spec *infrav1.VSphereMachine) error {
	find := func(what, name, kind string) (*types.ManagedObjectReference, error) {
		if name == "" {
			return nil, nil
		}
		ref, err := s.child(ctx, what, "datastore", name, kind)
		if err != nil {
			return nil, err
		}
		return &ref, nil
	}
	var err error
	if p.store, err = find("datastore", spec.Datastore, "Datastore"); err != nil {
		return err
	}
	if p.pod, err = find("datastore cluster", spec.DatastoreCluster, "StoragePod"); err != nil || spec.StoragePolicy == "" {
		return err
	}
	id, err := s.policy(ctx, spec.StoragePolicy)
	p.policy = []types.BaseVirtualMachineProfileSpec{&types.VirtualMachineDefinedProfileSpec{ProfileId: id}}
	return err
}

// recommended asks Storage DRS for a datastore in the plan's datastore cluster, for this machine.
func (s *session) recommended(ctx context.Context, p *plan, name string,
	clone *types.VirtualMachineCloneSpec) (*types.ManagedObjectReference, error) {
	answer, err := methods.RecommendDatastores(ctx, s, &types.RecommendDatastores{
		This: *s.content.StorageResourceManager,
		StorageSpec: types.StoragePlacementSpec{
			Type: string(types.StoragePlacementSpecPlacementTypeClone), Vm: &p.template.ref, CloneName: name, CloneSpec: clone,
			Folder: &p.folder, ResourcePool: &p.pool, PodSelectionSpec: types.StorageDrsPodSelectionSpec{StoragePod: p.pod},
		},
	})
	if err != nil {
		return nil, err
	}
	for _, recommendation := range answer.Returnval.Recommendations { // the best first
		for _, action := range recommendation.Action {
			if place, ok := action.(*types.StoragePlacementAction); ok {
				return &place.Destination, nil
			}
		}
	}
	return nil, cloud.Errorf(cloud.NoCapacity, "RecommendDatastores: Storage DRS finds no datastore for the machine in the datastore cluster: it may be full, or Storage DRS may be off")
}

// policy returns the ID of a storage policy. It asks vCenter's policy service, which takes the
// session's cookie in a header.
func (s *session) policy(ctx context.Context, name string) (string, error) {
	client := s.soap.NewServiceClient(pbm.Path, pbm.Namespace)
	client.Transport, client.Cookie = s.soap.Transport, s.soap.SessionCookie
	policies := &session{vcenter: s.vcenter, soap: client}
	content, err := pbmmethods.PbmRetrieveServiceContent(ctx, policies, &pbmtypes.PbmRetrieveServiceContent{This: pbm.ServiceInstance})
	if err != nil {
		return "", err
	}
	manager := content.Returnval.ProfileManager
	ids, err := pbmmethods.PbmQueryProfile(ctx, policies, &pbmtypes.PbmQueryProfile{
		This: manager, ProfileCategory: string(pbmtypes.PbmProfileCategoryEnumREQUIREMENT),
		ResourceType: pbmtypes.PbmProfileResourceType{ResourceType: string(pbmtypes.PbmProfileResourceTypeEnumSTORAGE)},
	})
	if err != nil {
		return "", err
	}
	found := &pbmtypes.PbmRetrieveContentResponse{}
	if len(ids.Returnval) > 0 {
		found, err = pbmmethods.PbmRetrieveContent(ctx, policies, &pbmtypes.PbmRetrieveContent{This: manager, ProfileIds: ids.Returnval})
		if err != nil {
			return "", err
		}
	}
	for _, profile := range found.Returnval {
		if p := profile.GetPbmProfile(); p.Name == name {
			return p.ProfileId.UniqueId, nil
		}
	}
	return "", cloud.Errorf(cloud.NotFound, "storage policy %q does not exist, or the account's user may not see it", cloud.Clip(name, 80))
}
