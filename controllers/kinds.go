// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/rest"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// kindsTimeout is how long CheckKinds waits for the API server to publish newly installed kinds.
const kindsTimeout = 10 * time.Second

// ownTypes is the import path prefix of Drover's types.
const ownTypes = "github.com/drover-io/drover/api/"

// CheckKinds returns an error if the management cluster does not serve Cluster API's version, or if
// its CRDs lack a field of this build, as CRDs of an older release do. An API server drops such
// fields silently, including the fields that prevent a second create of the same VM.
func CheckKinds(ctx context.Context, config *rest.Config, scheme *runtime.Scheme) error {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("connecting to the management cluster: %w", err)
	}
	var missing error
	err = wait.PollUntilContextTimeout(ctx, time.Second/2, kindsTimeout, true, func(context.Context) (bool, error) {
		missing = checkKinds(client.OpenAPIV3(), scheme)
		return missing == nil, nil
	})
	if missing != nil {
		return missing
	}
	return err
}

func checkKinds(client openapi.Client, scheme *runtime.Scheme) error {
	served, err := client.Paths()
	if err != nil {
		return fmt.Errorf("reading the API groups of the management cluster: %w", err)
	}
	if _, ok := served[pathOf(clusterv1.GroupVersion)]; !ok {
		return fmt.Errorf("the management cluster does not serve %s: install Cluster API v1.11 or newer first (clusterctl init)",
			clusterv1.GroupVersion)
	}
	for _, gv := range []schema.GroupVersion{infrav1.GroupVersion, bootstrapv1.GroupVersion, controlplanev1.GroupVersion} {
		kinds, err := publishedKinds(served[pathOf(gv)])
		if err != nil {
			return fmt.Errorf("reading the kinds of %s: %w", gv, err)
		}
		for kind, t := range scheme.KnownTypes(gv) {
			if _, object := t.FieldByName("ObjectMeta"); !object {
				continue
			}
			p := kinds[gv.WithKind(kind)]
			if p == nil {
				return fmt.Errorf("the management cluster does not serve %s of %s: install the CRDs of this manager's release (clusterctl init)",
					kind, gv)
			}
			if unknown := p.unknown(t, ""); len(unknown) > 0 {
				slices.Sort(unknown)
				return fmt.Errorf("the management cluster's %s of %s does not have the field %s. Its CRD is older than this manager: install those of the manager's release (clusterctl upgrade apply)",
					kind, gv, strings.Join(unknown[:min(3, len(unknown))], ", "))
			}
		}
	}
	return nil
}

// pathOf returns the path under which the API server publishes a group's kinds.
func pathOf(gv schema.GroupVersion) string { return "apis/" + gv.String() }

// published is the API server's description of a kind or of one of its fields, in OpenAPI terms.
type published struct {
	Properties map[string]*published     `json:"properties"`
	Items      *published                `json:"items"`
	Kinds      []schema.GroupVersionKind `json:"x-kubernetes-group-version-kind"`
}

func publishedKinds(group openapi.GroupVersion) (map[schema.GroupVersionKind]*published, error) {
	if group == nil {
		return nil, nil
	}
	raw, err := group.Schema(runtime.ContentTypeJSON)
	if err != nil {
		return nil, err
	}
	var document struct {
		Components struct {
			Schemas map[string]*published `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(raw, &document); err != nil {
		return nil, err
	}
	kinds := map[schema.GroupVersionKind]*published{}
	for _, p := range document.Components.Schemas {
		for _, kind := range p.Kinds {
			kinds[kind] = p
		}
	}
	return kinds, nil
}

// unknown returns the fields of a type that are not published. It checks only Drover's own types.
func (p *published) unknown(t reflect.Type, path string) (fields []string) {
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice {
		if t.Kind() == reflect.Slice && p != nil {
			p = p.Items
		}
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || !strings.HasPrefix(t.PkgPath(), ownTypes) || p == nil {
		return nil
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		at, of := path+"."+name, p.Properties[name]
		switch {
		case name == "-":
		case name == "": // inline
			fields = append(fields, p.unknown(f.Type, path)...)
		case of == nil:
			fields = append(fields, at[1:])
		default:
			fields = append(fields, of.unknown(f.Type, at)...)
		}
	}
	return fields
}
