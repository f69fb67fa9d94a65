// SPDX-License-Identifier: Apache-2.0

package armstub

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/compute/armcompute/v8"
	"github.com/Azure/azure-sdk-for-go/sdk/resourcemanager/resources/armresources/v3"
)

// models returns an empty model of Microsoft's for a name of the stub's; nil where
// Microsoft.Compute has none.
var models = map[string]func() any{
	"virtualMachine":      func() any { return &armcompute.VirtualMachine{} },
	"virtualMachineList":  func() any { return &armcompute.VirtualMachineListResult{} },
	"instanceView":        func() any { return &armcompute.VirtualMachineInstanceView{} },
	"bootDiagnosticsData": func() any { return &armcompute.RetrieveBootDiagnosticsDataResult{} },
	"tagsPatch":           func() any { return &armresources.TagsPatchResource{} },
	"tags":                func() any { return &armresources.TagsResource{} },
	"diskList":            func() any { return &armcompute.DiskList{} },
	"skuList":             func() any { return &armcompute.ResourceSKUsResult{} },
	"usageList":           func() any { return &armcompute.ListUsagesResult{} },
	"image":               func() any { return &armcompute.Image{} },
	"vmImage":             func() any { return &armcompute.VirtualMachineImage{} },
	"vmImageList":         func() any { return &[]armcompute.VirtualMachineImageResource{} },
	"galleryImage":        func() any { return &armcompute.GalleryImage{} },
	"galleryImageVersion": func() any { return &armcompute.GalleryImageVersion{} },

	"communityGalleryImage":        func() any { return &armcompute.CommunityGalleryImage{} },
	"communityGalleryImageVersion": func() any { return &armcompute.CommunityGalleryImageVersion{} },
	"sharedGalleryImage":           func() any { return &armcompute.SharedGalleryImage{} },
	"sharedGalleryImageVersion":    func() any { return &armcompute.SharedGalleryImageVersion{} },

	"operation": nil, "locationList": nil, "permissionList": nil, "agreement": nil, "virtualNetwork": nil, "networkInterfaceList": nil,
	"publicIPAddressList": nil,
	"publicIPAddress":     nil, "loadBalancer": nil, "loadBalancerList": nil, "backendAddressPool": nil, "loadBalancerHealth": nil,
}

// Judge returns what of a body is not in Microsoft's model: members that a round trip through the
// model loses or changes. The names of the models are those of the stub.
func Judge(model string, body []byte) (objections []string) {
	empty, named := models[model]
	switch {
	case !named:
		return []string{model + " is no model"}
	case empty == nil:
		return nil
	}
	typed := empty()
	if err := json.Unmarshal(body, typed); err != nil {
		return []string{model + ": " + err.Error()}
	}
	again, err := json.Marshal(typed)
	if err != nil {
		return []string{model + ": " + err.Error()}
	}
	var sent, kept any
	if json.Unmarshal(body, &sent) != nil || json.Unmarshal(again, &kept) != nil {
		return []string{model + ": not JSON"}
	}
	return lost(model, sent, kept)
}

// lost compares a value with what is left of it.
func lost(path string, sent, kept any) (all []string) {
	switch sent := sent.(type) {
	case map[string]any:
		kept, _ := kept.(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(sent)) {
			value, known := kept[key]
			if !known {
				all = append(all, path+"."+key+" is unknown")
				continue
			}
			all = append(all, lost(path+"."+key, sent[key], value)...)
		}
	case []any:
		kept, _ := kept.([]any)
		if len(kept) != len(sent) {
			return []string{fmt.Sprintf("%s has %d items, not %d", path, len(kept), len(sent))}
		}
		for i := range sent {
			all = append(all, lost(fmt.Sprintf("%s[%d]", path, i), sent[i], kept[i])...)
		}
	default:
		if !reflect.DeepEqual(sent, kept) {
			return []string{fmt.Sprintf("%s is %v, not %v", path, kept, sent)}
		}
	}
	return all
}
