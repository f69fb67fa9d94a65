// SPDX-License-Identifier: Apache-2.0

// azure-models reads bodies of Azure's API from its standard input, one JSON object a line with the
// members "model" and "body", and prints what is not as HashiCorp's models have it: members that
// are unknown, also by their case, missing although required, or of another type.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/hashicorp/go-azure-sdk/resource-manager/authorization/2022-04-01/permissions"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2021-07-01/skus"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2023-04-02/disks"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2023-07-03/communitygalleryimages"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2023-07-03/communitygalleryimageversions"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2023-07-03/galleryimages"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2023-07-03/galleryimageversions"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2023-07-03/sharedgalleryimages"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2023-07-03/sharedgalleryimageversions"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2025-04-01/images"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2025-04-01/virtualmachineimages"
	"github.com/hashicorp/go-azure-sdk/resource-manager/compute/2025-04-01/virtualmachines"
	"github.com/hashicorp/go-azure-sdk/resource-manager/marketplaceordering/2021-01-01/agreements"
	"github.com/hashicorp/go-azure-sdk/resource-manager/network/2024-05-01/loadbalancers"
	"github.com/hashicorp/go-azure-sdk/resource-manager/network/2024-05-01/networkinterfaces"
	"github.com/hashicorp/go-azure-sdk/resource-manager/network/2024-05-01/publicipaddresses"
	"github.com/hashicorp/go-azure-sdk/resource-manager/network/2024-05-01/virtualnetworks"
	"github.com/hashicorp/go-azure-sdk/resource-manager/resources/2022-12-01/subscriptions"
)

// list is a page of a listing.
type list[T any] struct {
	Value    []T     `json:"value"`
	NextLink *string `json:"nextLink,omitempty"`
}

// models are in the versions that the driver uses, except that of disks, which is one older.
var models = map[string]any{
	"virtualMachine":       virtualmachines.VirtualMachine{},
	"virtualMachineList":   list[virtualmachines.VirtualMachine]{},
	"instanceView":         virtualmachines.VirtualMachineInstanceView{},
	"bootDiagnosticsData":  virtualmachines.RetrieveBootDiagnosticsDataResult{},
	"diskList":             list[disks.Disk]{},
	"skuList":              list[skus.ResourceSku]{},
	"image":                images.Image{},
	"vmImage":              virtualmachineimages.VirtualMachineImage{},
	"vmImageList":          []virtualmachineimages.VirtualMachineImageResource{},
	"galleryImage":         galleryimages.GalleryImage{},
	"galleryImageVersion":  galleryimageversions.GalleryImageVersion{},
	"locationList":         list[subscriptions.Location]{},
	"permissionList":       list[permissions.Permission]{},
	"agreement":            agreements.AgreementTerms{},
	"virtualNetwork":       virtualnetworks.VirtualNetwork{},
	"networkInterfaceList": list[networkinterfaces.NetworkInterface]{},
	"publicIPAddressList":  list[publicipaddresses.PublicIPAddress]{},
	"publicIPAddress":      publicipaddresses.PublicIPAddress{},
	"loadBalancer":         loadbalancers.LoadBalancer{},
	"loadBalancerList":     list[loadbalancers.LoadBalancer]{},
	"backendAddressPool":   loadbalancers.BackendAddressPool{},
	"loadBalancerHealth":   loadbalancers.LoadBalancerHealthPerRule{},

	"communityGalleryImage":        communitygalleryimages.CommunityGalleryImage{},
	"communityGalleryImageVersion": communitygalleryimageversions.CommunityGalleryImageVersion{},
	"sharedGalleryImage":           sharedgalleryimages.SharedGalleryImage{},
	"sharedGalleryImageVersion":    sharedgalleryimageversions.SharedGalleryImageVersion{},
}

func main() {
	log.SetFlags(0)
	in := json.NewDecoder(os.Stdin)
	for {
		var line struct {
			Model string          `json:"model"`
			Body  json.RawMessage `json:"body"`
		}
		err := in.Decode(&line)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			log.Fatal(err)
		}
		for _, objection := range judge(line.Model, line.Body) {
			fmt.Println(objection)
		}
	}
}

func judge(name string, body []byte) []string {
	model, known := models[name]
	if !known {
		return []string{name + " is no model"}
	}
	var value any
	if err := json.Unmarshal(body, &value); err != nil {
		return []string{name + ": " + err.Error()}
	}
	strict := json.NewDecoder(bytes.NewReader(body))
	strict.DisallowUnknownFields()
	objections := compare(name, value, reflect.TypeOf(model))
	if err := strict.Decode(reflect.New(reflect.TypeOf(model)).Interface()); err != nil {
		objections = append(objections, name+": "+err.Error())
	}
	return objections
}

var marshaler, unmarshaler = reflect.TypeFor[json.Marshaler](), reflect.TypeFor[json.Unmarshaler]()

// compare compares the members of a value with those of a type. A type that reads or writes itself,
// such as that of identities, is left to the decoder.
func compare(path string, value any, t reflect.Type) (all []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if p := reflect.PointerTo(t); p.Implements(unmarshaler) || p.Implements(marshaler) {
		return nil
	}
	switch v := value.(type) {
	case []any:
		if t.Kind() == reflect.Slice {
			for i, item := range v {
				all = append(all, compare(fmt.Sprintf("%s[%d]", path, i), item, t.Elem())...)
			}
		}
	case map[string]any:
		if t.Kind() != reflect.Struct {
			return nil
		}
		members := map[string]reflect.Type{}
		for field := range t.Fields() {
			key, options, _ := strings.Cut(field.Tag.Get("json"), ",")
			members[key] = field.Type
			if _, has := v[key]; !has && field.Type.Kind() != reflect.Pointer && options != "omitempty" {
				all = append(all, path+"."+key+" is missing")
			}
		}
		for _, key := range slices.Sorted(maps.Keys(v)) {
			member, has := members[key]
			if !has {
				all = append(all, path+"."+key+" is unknown")
				continue
			}
			all = append(all, compare(path+"."+key, v[key], member)...)
		}
	}
	return all
}
