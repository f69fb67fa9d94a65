// SPDX-License-Identifier: Apache-2.0

package playground

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

var crdKind = schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}

// read reads the objects in a YAML file, or in all YAML files of a folder except
// kustomization.yaml.
func read(path string) ([]*unstructured.Unstructured, error) {
	files := []string{path}
	if info, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	} else if info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
			return nil, fmt.Errorf("read manifests: %w", err)
		}
	}
	var objects []*unstructured.Unstructured
	for _, file := range files {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		some, err := readFile(file)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
		objects = append(objects, some...)
	}
	return objects, nil
}

func readFile(file string) ([]*unstructured.Unstructured, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var objects []*unstructured.Unstructured
	for decoder := yaml.NewYAMLOrJSONDecoder(f, 4096); ; {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(&o.Object); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		if len(o.Object) > 0 {
			objects = append(objects, o)
		}
	}
}

// apply creates the objects, or replaces those that exist.
func apply(ctx context.Context, c client.Client, objects ...*unstructured.Unstructured) error {
	for _, o := range objects {
		err := c.Create(ctx, o)
		if apierrors.IsAlreadyExists(err) {
			old := &unstructured.Unstructured{}
			old.SetGroupVersionKind(o.GroupVersionKind())
			if err = c.Get(ctx, client.ObjectKeyFromObject(o), old); err == nil {
				o.SetResourceVersion(old.GetResourceVersion())
				err = c.Update(ctx, o)
			}
		}
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}

// established waits until the API server serves the CRDs.
func established(ctx context.Context, c client.Client, crds []*unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(ctx, startDeadline)
	defer cancel()
	for _, crd := range crds {
		got := &unstructured.Unstructured{}
		got.SetGroupVersionKind(crdKind)
		err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			if err := c.Get(ctx, client.ObjectKeyFromObject(crd), got); err != nil {
				return false, err
			}
			conditions, _, _ := unstructured.NestedSlice(got.Object, "status", "conditions")
			return slices.ContainsFunc(conditions, func(c any) bool {
				m, ok := c.(map[string]any)
				return ok && m["type"] == "Established" && m["status"] == "True"
			}), nil
		})
		if err != nil {
			return fmt.Errorf("wait until %s is established: %w", crd.GetName(), err)
		}
	}
	return nil
}

// label sets labels on an object.
func label(o *unstructured.Unstructured, labels map[string]string) {
	all := o.GetLabels()
	if all == nil {
		all = map[string]string{}
	}
	for k, v := range labels {
		all[k] = v
	}
	o.SetLabels(all)
}

// convertAt sets a conversion webhook outside the cluster on a CRD with several versions.
func convertAt(crd *unstructured.Unstructured, url string, ca []byte) error {
	versions, _, err := unstructured.NestedSlice(crd.Object, "spec", "versions")
	if err != nil || len(versions) < 2 {
		return err
	}
	return unstructured.SetNestedMap(crd.Object, map[string]any{
		"strategy": "Webhook",
		"webhook": map[string]any{
			"conversionReviewVersions": []any{"v1"},
			"clientConfig":             clientConfig(url+"/convert", ca),
		},
	}, "spec", "conversion")
}

// serveAt rewrites a webhook configuration for a server outside the cluster: it replaces the
// Service with a URL.
func serveAt(configuration *unstructured.Unstructured, url string, ca []byte) error {
	hooks, _, err := unstructured.NestedSlice(configuration.Object, "webhooks")
	if err != nil {
		return fmt.Errorf("read the webhooks of %s: %w", configuration.GetName(), err)
	}
	for _, h := range hooks {
		hook, ok := h.(map[string]any)
		if !ok {
			return fmt.Errorf("read the webhooks of %s: one is no object", configuration.GetName())
		}
		path, _, err := unstructured.NestedString(hook, "clientConfig", "service", "path")
		if err != nil {
			return fmt.Errorf("read the webhooks of %s: %w", configuration.GetName(), err)
		}
		hook["clientConfig"] = clientConfig(url+path, ca)
	}
	return unstructured.SetNestedSlice(configuration.Object, hooks, "webhooks")
}

func clientConfig(url string, ca []byte) map[string]any {
	return map[string]any{"url": url, "caBundle": base64.StdEncoding.EncodeToString(ca)}
}
