// SPDX-License-Identifier: Apache-2.0

package rig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/cluster-api/util/conditions"
	"sigs.k8s.io/controller-runtime/pkg/client"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	controlplanev1 "github.com/drover-io/drover/api/controlplane/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
)

// Dump returns a readable description of a namespace's objects: what is wrong with them, in the
// words of their conditions.
func (r *Rig) Dump(ctx context.Context, namespace string) string {
	var b strings.Builder
	for _, list := range []client.ObjectList{
		&clusterv1.ClusterList{}, &infrav1.DroverClusterList{}, &controlplanev1.AdoptedControlPlaneList{}, &infrav1.DroverAccountList{},
		&clusterv1.MachineDeploymentList{}, &clusterv1.MachineSetList{}, &clusterv1.MachineList{},
		&infrav1.DroverMachineList{}, &bootstrapv1.DroverConfigList{},
	} {
		if err := r.Client.List(ctx, list, client.InNamespace(namespace)); err != nil {
			fmt.Fprintf(&b, "%v\n", err)
			continue
		}
		for _, o := range items(list) {
			deleted := ""
			if !o.GetDeletionTimestamp().IsZero() {
				deleted = " is being deleted, finalizers " + strings.Join(o.GetFinalizers(), ", ")
			}
			fmt.Fprintf(&b, "%s/%s%s\n", strings.TrimPrefix(fmt.Sprintf("%T", o), "*"), o.GetName(), deleted)
			if m, ok := o.(*infrav1.DroverMachine); ok {
				fmt.Fprintf(&b, "  token %q, provider ID %q, instance %q\n", m.Spec.Creation.Token, m.Spec.ProviderID, m.Status.InstanceState)
			}
			getter, ok := o.(conditions.Getter)
			if !ok {
				continue
			}
			for _, c := range getter.GetConditions() {
				if (c.Status == metav1.ConditionTrue) != (c.Type == clusterv1.PausedCondition) || c.Message != "" {
					fmt.Fprintf(&b, "  %s=%s %s: %s\n", c.Type, c.Status, c.Reason, strings.ReplaceAll(c.Message, "\n", " "))
				}
			}
		}
	}
	if snapshot, err := r.place.books(ctx); err == nil {
		for _, i := range snapshot.Resources {
			if i.Account == namespace {
				fmt.Fprintf(&b, "cloud: %s %s %s %s tags %v", i.Kind, i.ID, i.State, i.StateReason, i.Tags)
				if i.Body != nil {
					fmt.Fprintf(&b, " body %s", i.Body.Phase)
				}
				fmt.Fprintln(&b)
			}
		}
	}
	nodes, err := r.allNodes(ctx)
	if err != nil {
		fmt.Fprintf(&b, "%v\n", err)
	}
	for i := range nodes {
		if n := &nodes[i]; strings.HasPrefix(n.Name, namespace+"-") {
			fmt.Fprintf(&b, "node: %s, provider ID %q, made %s\n%s", n.Name, n.Spec.ProviderID, n.CreationTimestamp.UTC().Format(time.TimeOnly),
				r.said(n.Name))
		}
	}
	return b.String()
}

// lastLines is the number of lines shown of each log about an object.
const lastLines = 12

// said returns the last lines about a name in the managers' logs.
func (r *Rig) said(name string) string {
	var b strings.Builder
	for _, log := range r.logs() {
		lines, err := linesOf(log, name)
		if err != nil {
			continue
		}
		for _, line := range lines[max(len(lines)-lastLines, 0):] {
			fmt.Fprintf(&b, "  %s: %.700s\n", filepath.Base(log), line)
		}
	}
	return b.String()
}

// Logged returns the lines about a name in the managers' logs, one log after the other.
func (r *Rig) Logged(name string) (all []string, err error) {
	for _, log := range r.logs() {
		lines, readErr := linesOf(log, name)
		all, err = append(all, lines...), errors.Join(err, readErr)
	}
	return all, err
}

func (r *Rig) logs() []string {
	found, _ := filepath.Glob(filepath.Join(r.Management.Dir, "*.log"))
	return found
}

func linesOf(log, name string) (found []string, err error) {
	raw, err := os.ReadFile(log)
	for line := range strings.Lines(string(raw)) {
		if strings.Contains(line, name) {
			found = append(found, strings.TrimSpace(line))
		}
	}
	return found, err
}

func items(list client.ObjectList) (all []client.Object) {
	switch l := list.(type) {
	case *clusterv1.ClusterList:
		return pointers(l.Items)
	case *clusterv1.MachineDeploymentList:
		return pointers(l.Items)
	case *clusterv1.MachineSetList:
		return pointers(l.Items)
	case *clusterv1.MachineList:
		return pointers(l.Items)
	case *infrav1.DroverClusterList:
		return pointers(l.Items)
	case *infrav1.DroverAccountList:
		return pointers(l.Items)
	case *infrav1.DroverMachineList:
		return pointers(l.Items)
	case *bootstrapv1.DroverConfigList:
		return pointers(l.Items)
	case *controlplanev1.AdoptedControlPlaneList:
		return pointers(l.Items)
	}
	return nil
}

func pointers[T any, P interface {
	*T
	client.Object
}](values []T) []client.Object {
	all := make([]client.Object, len(values))
	for i := range values {
		all[i] = P(&values[i])
	}
	return all
}

// Save copies the logs of all processes into a folder.
func (r *Rig) Save(dir string) error {
	for name, from := range map[string]string{"management": r.Management.Dir, "workload": r.Workload.Dir} {
		logs, err := filepath.Glob(filepath.Join(from, "*.log"))
		if err != nil {
			return err
		}
		if r.Cloud != nil {
			logs = append(logs, r.Cloud.Log)
		}
		for _, log := range logs {
			raw, err := os.ReadFile(log)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, name+"-"+filepath.Base(log)), raw, 0o600)
			}
			if err != nil {
				return fmt.Errorf("save the logs: %w", err)
			}
		}
	}
	return nil
}
