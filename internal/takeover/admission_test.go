// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	. "github.com/onsi/gomega"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/bootstrap/render"
)

// budget is an API server's for the rules of one object.
const budget = 10_000_000

// admission checks the spec of a kind's objects as an API server with its CRD does.
type admission struct {
	structural *schema.Structural
	values     crdvalidation.SchemaValidator
	rules      *cel.Validator
}

func newAdmission(file string) (*admission, error) {
	var v1 apiextensionsv1.CustomResourceDefinition
	data, err := os.ReadFile("../../config/crd/bases/" + file)
	if err == nil {
		err = yaml.UnmarshalStrict(data, &v1)
	}
	if err != nil {
		return nil, err
	}
	var props apiextensions.JSONSchemaProps
	spec := v1.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(&spec, &props, nil); err != nil {
		return nil, err
	}
	a := &admission{}
	if a.structural, err = schema.NewStructural(&props); err != nil {
		return nil, err
	}
	a.rules = cel.NewValidator(a.structural, false, budget)
	a.values, _, err = crdvalidation.NewSchemaValidator(&props)
	return a, err
}

var (
	machineTemplates = sync.OnceValues(func() (*admission, error) {
		return newAdmission("infrastructure.cluster.x-k8s.io_drovermachinetemplates.yaml")
	})
	configTemplates = sync.OnceValues(func() (*admission, error) {
		return newAdmission("bootstrap.cluster.x-k8s.io_droverconfigtemplates.yaml")
	})
)

func (a *admission) refuses(t *testing.T, o any) field.ErrorList {
	t.Helper()
	var object map[string]any
	text, err := json.Marshal(o)
	if err == nil {
		err = utiljson.Unmarshal(text, &object) // with whole numbers as an API server's
	}
	if err != nil {
		t.Fatal(err)
	}
	at := field.NewPath("spec")
	errs := crdvalidation.ValidateCustomResource(at, object["spec"], a.values)
	broken, _ := a.rules.Validate(t.Context(), at, a.structural, object["spec"], nil, budget)
	return append(errs, broken...)
}

// refusals returns what an API server with Drover's CRDs and webhooks refuses of a plan's
// templates, on which the other objects depend.
func refusals(t *testing.T, target *Target, p *Plan) (refused []string) {
	t.Helper()
	for _, o := range target.Objects(p) {
		var errs field.ErrorList
		var kind *admission
		var err error
		switch is := o.(type) {
		case *infrav1.DroverMachineTemplate:
			kind, err = machineTemplates()
		case *bootstrapv1.DroverConfigTemplate:
			kind, err = configTemplates()
			errs = render.Validate(&is.Spec.Template.Spec, field.NewPath("spec", "template", "spec"))
		default:
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range append(errs, kind.refuses(t, o)...) {
			refused = append(refused, o.GetName()+": "+e.Error())
		}
	}
	slices.Sort(refused)
	return slices.Compact(refused)
}

// TestFixturesAreAdmitted tests that Drover's own admission accepts the plans of all fixtures.
func TestFixturesAreAdmitted(t *testing.T) {
	t.Parallel()
	for name, of := range fixtures() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target, p := of(t)
			NewWithT(t).Expect(refusals(t, target, p)).To(BeEmpty())
		})
	}
}

// TestDisksOfMachineControllerAreAdmitted tests that new disks have IOPS only where
// machine-controller sends them: its own example has diskIops beside gp2.
func TestDisksOfMachineControllerAreAdmitted(t *testing.T) {
	t.Parallel()
	const at = "spec.template.spec.providerSpec.value.cloudProviderSpec."
	for _, c := range []struct {
		kind       string
		iops, want int64
	}{
		{"gp2", 500, 0}, {"standard", 100, 0}, {"st1", 500, 0}, {"sc1", 250, 0}, {"", 500, 0}, {"gp2", 0, 0}, {"gp3", 4000, 4000},
		{"io1", 100, 100},
	} {
		t.Run("type "+c.kind, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			w := newMCWorld(t)
			inPool(at+"diskType", c.kind)(w)
			inPool(at+"diskIops", c.iops)(w)
			p := w.plan()
			g.Expect(p.Blocked()).To(Equal(0))
			g.Expect(refusals(t, w.target, p)).To(BeEmpty())
			workers := p.Pools[slices.IndexFunc(p.Pools, func(pool Pool) bool { return pool.Name == "workers" })]
			g.Expect(workers.Machine.Cloud.AWS.RootVolume.IOPS).To(BeEquivalentTo(c.want))
			noted := slices.ContainsFunc(p.Findings, func(f Finding) bool { return f.Field == at+"diskIops" && f.Severity == Noted })
			g.Expect(noted).To(Equal(c.iops != c.want))
		})
	}
}

// TestLabelsOfNodes tests who gives a label to new Nodes: their kubelet, Cluster API by the
// Machine, or nobody, which the plan says.
func TestLabelsOfNodes(t *testing.T) {
	t.Parallel()
	// The zeroth pool of both fixtures has these labels.
	const mcmField, mcField = "spec.template.spec.nodeTemplate.metadata.labels", "spec.template.spec.metadata.labels"
	systems := map[string]func(t *testing.T, labels map[string]any, drop ...string) (*Target, *Plan){
		mcmField: func(t *testing.T, labels map[string]any, drop ...string) (*Target, *Plan) {
			w := newWorld(t)
			set(&w.Deployments[0], mcmField, labels)
			set(&w.Sets[0], mcmField, labels)
			return w.target, w.plan(drop...)
		},
		mcField: func(t *testing.T, labels map[string]any, drop ...string) (*Target, *Plan) {
			w := newMCWorld(t)
			inPool(mcField, labels)(w)
			return w.target, w.plan(drop...)
		},
	}
	for field, system := range systems {
		for name, c := range map[string]struct {
			label                    string
			kubelet, machine, nobody bool
		}{
			"a user's":          {label: "example.com/team", kubelet: true},
			"without a domain":  {label: "pool", kubelet: true},
			"a kubelet's own":   {label: "node.kubernetes.io/role", kubelet: true},
			"role":              {label: "node-role.kubernetes.io/default", machine: true},
			"restriction":       {label: "node-restriction.kubernetes.io/zone", machine: true},
			"restriction below": {label: "blue.node-restriction.kubernetes.io/zone", machine: true},
			"of Kubernetes":     {label: "kubernetes.io/role", nobody: true},
			"of its project":    {label: "autoscaling.k8s.io/pool", nobody: true},
		} {
			t.Run(field+" "+name, func(t *testing.T) {
				t.Parallel()
				g := NewWithT(t)
				target, p := system(t, map[string]any{c.label: "x"})
				g.Expect(refusals(t, target, p)).To(BeEmpty())
				lost := HaveField("Message", ContainSubstring(c.label))
				if c.nobody {
					g.Expect(p.Findings).To(ContainElement(And(HaveField("Severity", Lost), HaveField("Field", field), lost)))
					_, p = system(t, map[string]any{c.label: "x"}, field)
				} else {
					g.Expect(p.Findings).NotTo(ContainElement(lost))
				}
				g.Expect(p.Blocked()).To(Equal(0))
				pool := &p.Pools[slices.IndexFunc(p.Pools, func(pool Pool) bool { return strings.HasPrefix(pool.Name, "workers") })]
				_, byKubelet := target.configTemplate(pool).Spec.Template.Spec.NodeLabels[c.label]
				d := target.deployment(pool)
				_, byMachine := d.Spec.Template.Labels[c.label]
				g.Expect([]bool{byKubelet, byMachine}).To(Equal([]bool{c.kubelet, c.machine}))
				set := target.machineSet(pool, d)
				_, adopted := target.machine(pool.Machines[0], pool, set).Labels[c.label]
				g.Expect(adopted).To(Equal(c.machine), "the running machines have it, too")
			})
		}
	}
}

// TestEmptyFieldsAreAdmitted tests that what means nothing in the old system is left out.
func TestEmptyFieldsAreAdmitted(t *testing.T) {
	t.Parallel()
	mcm := func(read func(*testing.T) *world, path string, value any) func(*testing.T) (*Target, *Plan) {
		return func(t *testing.T) (*Target, *Plan) {
			w := read(t)
			class("providerSpec."+path, value)(w)
			return w.target, w.plan()
		}
	}
	capi := func(read func(*testing.T) *capiWorld, change func(*capiWorld)) func(*testing.T) (*Target, *Plan) {
		return func(t *testing.T) (*Target, *Plan) {
			w := read(t)
			change(w)
			return w.target, w.plan()
		}
	}
	kubeadm := func(path string, value any) func(*capiWorld) {
		return func(w *capiWorld) { set(&w.Configs[0], "spec.template.spec."+path, value) }
	}
	empty := map[string]any{}
	for name, of := range map[string]func(*testing.T) (*Target, *Plan){
		"CPU without SEV-SNP":      mcm(newWorld, "cpuOptions", map[string]any{"amdSevSnp": "disabled"}),
		"CPU":                      mcm(newWorld, "cpuOptions", empty),
		"CPU, 0":                   mcm(newWorld, "cpuOptions", map[string]any{"coreCount": int64(0), "threadsPerCore": int64(0)}),
		"capacity reservation":     mcm(newWorld, "capacityReservation", empty),
		"reservation's preference": mcm(newWorld, "capacityReservation", map[string]any{"capacityReservationPreference": ""}),
		"security on Azure":        mcm(newMCMOnAzure, "properties.securityProfile", map[string]any{"uefiSettings": empty}),
		"shielded on Google Cloud": mcm(newMCMOnGCP, "shieldedInstanceConfiguration", empty),
		"attribute on vSphere": mcm(newMCMOnVSphere, "tags",
			map[string]any{"cost-center": "", "mcm.gardener.cloud/cluster": "blue", "mcm.gardener.cloud/role": "node"}),
		"labels of the kubelet": capi(newCAPIWorld,
			kubeadm("joinConfiguration.nodeRegistration.kubeletExtraArgs", []any{map[string]any{"name": "node-labels", "value": "a=b,, c=d"}})),
		"a command":    capi(newCAPIWorld, kubeadm("preKubeadmCommands", []any{"", "true", " "})),
		"a user's key": capi(newCAPIWorld, kubeadm("users", []any{map[string]any{"name": "alice", "sshAuthorizedKeys": []any{""}}})),
		"a fixed address": capi(newCAPIServers, func(w *capiWorld) {
			set(&w.Templates[0], "spec.template.spec.ports", []any{map[string]any{"network": map[string]any{"id": "net"}, "fixedIPs": []any{empty}}})
		}),
		"security in a pool on Azure": func(t *testing.T) (*Target, *Plan) {
			w := newMCOnAzure(t)
			inPool("spec.template.spec.providerSpec.value.cloudProviderSpec.securityProfile", empty)(w)
			return w.target, w.plan()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := NewWithT(t)
			target, p := of(t)
			g.Expect(p.Blocked()).To(Equal(0), "%+v", p.Findings)
			g.Expect(refusals(t, target, p)).To(BeEmpty())
		})
	}
}
