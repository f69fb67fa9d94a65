// SPDX-License-Identifier: Apache-2.0

package manager

import (
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/logs"
	"sigs.k8s.io/cluster-api/controllers/clustercache"
	ctrl "sigs.k8s.io/controller-runtime"
	ctrlmanager "sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/drover-io/drover/cloud/fleet"
	"github.com/drover-io/drover/cloud/registry"
	"github.com/drover-io/drover/controllers"
	"github.com/drover-io/drover/internal/conflict"
	"github.com/drover-io/drover/internal/options"
)

// recordingManager records what is added to a manager.
type recordingManager struct {
	ctrl.Manager
	added []ctrlmanager.Runnable
}

func (m *recordingManager) Add(r ctrlmanager.Runnable) error {
	m.added = append(m.added, r)
	return m.Manager.Add(r)
}

// TestConflictsAreRetried: every controller of the manager retries after a Conflict, and does not
// report it as an error.
func TestConflictsAreRetried(t *testing.T) {
	scheme, err := options.NewScheme()
	if err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper(nil)
	for kind := range scheme.AllKnownTypes() {
		mapper.Add(kind, meta.RESTScopeNamespace)
	}
	base, err := ctrl.NewManager(&rest.Config{Host: "https://management.invalid"}, ctrl.Options{
		Scheme:         scheme,
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return mapper, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	mgr := &recordingManager{Manager: base}
	clouds := registry.WithSimulated("")
	s := &shared{
		identity: "1234abcd-",
		clouds:   clouds, clusterCache: clustercache.NewFakeEmptyClusterCache(),
		accounts:        fleet.NewAccounts(fleet.Options{Clouds: clouds, Times: fleet.TimesFor(fleet.DefaultCall)}),
		machinesChanged: &controllers.EventQueue{}, accountsChanged: &controllers.EventQueue{}, endpointsChanged: &controllers.EventQueue{},
	}
	s.nodes = &controllers.NodeHandover{Machines: s.machinesChanged, Nodes: &controllers.EventQueue{}}
	o := managerOptions{logs: logs.NewOptions()}
	o.flags(pflag.NewFlagSet("test", pflag.ContinueOnError))
	if err := registerControllers(t.Context(), mgr, s, o); err != nil {
		t.Fatal(err)
	}
	pkg := reflect.TypeFor[conflict.Reconciler[ctrl.Request]]().PkgPath()
	var names []string
	for _, runnable := range mgr.added {
		v := reflect.Indirect(reflect.ValueOf(runnable))
		if v.Kind() != reflect.Struct || !strings.HasPrefix(v.Type().Name(), "Controller[") {
			continue
		}
		name := v.FieldByName("Name").String()
		names = append(names, name)
		if does := v.FieldByName("Do").Elem().Type(); does.PkgPath() != pkg {
			t.Errorf("the controller %q reconciles by %s, which returns a Conflict as an error: wrap it by conflict.Retried", name, does)
		}
	}
	slices.Sort(names)
	want := []string{
		"adoptedcontrolplane", "credentials", "csr", "csr-watch", "droveraccount", "drovercluster", "droverconfig", "drovermachine",
		"drovermachinetemplate", "endpoint", "node", "orphans", "overshoot", "reachability",
	}
	if !slices.Equal(names, want) {
		t.Errorf("the controllers are %q, want %q", names, want)
	}
}
