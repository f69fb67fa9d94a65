// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/internal/terminal"
)

// Print writes the plan for people: the pools, their machines, and the findings.
func (t *Target) Print(out io.Writer, p *Plan) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "POOL\tMACHINE\tVM\tNODE\tVERSION")
	vms, own := 0, 0
	for i := range p.Pools {
		pool := &p.Pools[i]
		fmt.Fprintf(table, "%s\t%d of %d\t\t\t%s\n", pool.Name, len(pool.Machines), pool.Replicas, pool.Version)
		for _, m := range pool.Machines {
			fmt.Fprintf(table, "\t%s\t%s\t%s\t%s\n", m.Name, m.instanceName(), m.Node, m.Version)
			own += len(m.OwnedResources)
		}
		vms += len(pool.Machines)
	}
	if err := table.Flush(); err != nil {
		return err
	}
	count := map[string]int{}
	for _, o := range t.Objects(p) {
		count[o.GetObjectKind().GroupVersionKind().Kind]++
	}
	fmt.Fprintf(out, "\nTo be made: %s\nTo be tagged: VM %d, with %s\n", Counts(count), vms,
		strings.Join(slices.Sorted(maps.Keys(t.Tags(Machine{}))), ", "))
	if own > 0 {
		fmt.Fprintf(out, "Ports, volumes and floating IPs with one of %d names or IDs will be deleted together with their VMs (use -o yaml to list them)\n", own)
	}
	fmt.Fprintln(out)
	return p.PrintFindings(out)
}

// Counts writes how many there are of each kind, for people.
func Counts(of map[string]int) string {
	var kinds []string
	for _, kind := range slices.Sorted(maps.Keys(of)) {
		kinds = append(kinds, fmt.Sprintf("%s %d", kind, of[kind]))
	}
	if len(kinds) == 0 {
		return "nothing"
	}
	return strings.Join(kinds, ", ")
}

// PrintFindings writes the findings for people.
func (p *Plan) PrintFindings(out io.Writer) error {
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "RESULT\tOBJECT\tFIELD\tMESSAGE")
	for _, f := range p.sorted() {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\n", f.Severity, f.Object, f.Field, f.Message)
	}
	return table.Flush()
}

// Document returns the plan for programs: the findings, and all objects.
func (t *Target) Document(p *Plan) map[string]any {
	return map[string]any{"findings": p.sorted(), "objects": t.Objects(p)}
}

// PrintYAML writes all objects, for review and version control. Findings and tags are comments.
func (t *Target) PrintYAML(out io.Writer, p *Plan) error {
	var b strings.Builder
	b.WriteString("# What \"drover import\" would make, for review. Do not apply it: without the order and the tags of the\n# takeover, machines would be made or given up.\n")
	for _, f := range p.sorted() {
		fmt.Fprintf(&b, "# %s: %s %s: %s\n", f.Severity, f.Object, f.Field, f.Message)
	}
	tags, own := map[string]map[string]string{}, map[string][]string{}
	for i := range p.Pools {
		for _, m := range p.Pools[i].Machines {
			tags[m.Name], own[m.Name] = t.Tags(m), m.OwnedResources
		}
	}
	for _, o := range t.Objects(p) {
		data, err := json.Marshal(o)
		if err == nil {
			data, err = withoutEmpty(data)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", o.GetName(), err)
		}
		b.WriteString("---\n")
		if _, vm := o.(*infrav1.DroverMachine); vm {
			for _, key := range slices.Sorted(maps.Keys(tags[o.GetName()])) {
				fmt.Fprintf(&b, "# its VM's tag %s: %s\n", key, tags[o.GetName()][key])
			}
			for _, part := range own[o.GetName()] {
				fmt.Fprintf(&b, "# goes with its VM: the port, volume or floating IP %s\n", part)
			}
		}
		b.Write(data)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// withoutEmpty turns an object into YAML, without its status and what the API server sets.
func withoutEmpty(data []byte) ([]byte, error) {
	fields := map[string]any{}
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	if meta, ok := fields["metadata"].(map[string]any); ok {
		delete(meta, "creationTimestamp")
	}
	return yaml.Marshal(fields)
}

// sorted returns the findings without duplicates, the worst first, as they can be printed: names
// and messages of a cloud are shown on a terminal.
func (p *Plan) sorted() []Finding {
	order := []Severity{Refused, Lost, Dropped, Noted}
	all := slices.Clone(p.Findings)
	for i := range all {
		for _, text := range []*string{&all[i].Object, &all[i].Field, &all[i].Message} {
			*text = terminal.Printable(*text)
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		return slices.Index(order, a.Severity) - slices.Index(order, b.Severity)
	})
	seen := map[Finding]bool{}
	return slices.DeleteFunc(all, func(f Finding) bool {
		again := seen[f]
		seen[f] = true
		return again
	})
}
