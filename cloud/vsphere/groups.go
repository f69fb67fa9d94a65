// SPDX-License-Identifier: Apache-2.0

package vsphere

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/vmware/govmomi/vim25/methods"
	"github.com/vmware/govmomi/vim25/types"
	"k8s.io/utils/ptr"

	"github.com/drover-io/drover/cloud"
)

// groups holds the machines that DRS keeps on different hosts. A rule can name only existing VMs,
// so the listing that finds new VMs sets it, for all of them at once. vCenter removes destroyed VMs
// from their rules.
type groups struct {
	mu sync.Mutex
	// inRule holds the VMs that need no further check until their group gets a new VM.
	inRule map[types.ManagedObjectReference]bool
	// tasks holds the latest rule change of each compute cluster.
	tasks map[types.ManagedObjectReference]types.ManagedObjectReference
}

// unchecked returns the groups with a VM that was not checked yet, by rule name. It forgets VMs
// that are gone.
func (g *groups) unchecked(vms []vm) map[string][]vm {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.tasks == nil {
		g.tasks = map[types.ManagedObjectReference]types.ManagedObjectReference{}
	}
	all, fresh, there := map[string][]vm{}, map[string]bool{}, map[types.ManagedObjectReference]bool{}
	for _, m := range vms {
		group := m.text(option(optionGroup))
		if group == "" || m.identity() == "" {
			continue
		}
		_, owner := m.tags()
		rule := ruleName(owner, group)
		all[rule] = append(all[rule], m)
		if g.inRule[m.ref] {
			there[m.ref] = true
		} else {
			fresh[rule] = true
		}
	}
	g.inRule = there
	maps.DeleteFunc(all, func(rule string, _ []vm) bool { return !fresh[rule] })
	return all
}

// markInRule records that the VMs are in their rule, or need none.
func (g *groups) markInRule(refs []types.ManagedObjectReference) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, ref := range refs {
		g.inRule[ref] = true
	}
}

// ruleName returns the name of the group's rule. It is unique to the cluster, whatever groups
// others have, and fits the 80 characters of a name.
func ruleName(owner, group string) string {
	return fmt.Sprintf("drover-%s-%x", group, sha256.Sum256([]byte(owner)))[:len("drover--")+len(group)+12]
}

// applyAntiAffinity makes each group's rule name all its VMs. A failure is shown with the machines
// and does not fail the listing.
func (d *driver) applyAntiAffinity(ctx context.Context, s *session, vms []vm, shown []cloud.Resource) error {
	waiting := d.groups.unchecked(vms)
	if len(waiting) == 0 {
		return nil
	}
	err := d.updateRules(ctx, s, waiting)
	var queued *cloud.Queued
	switch {
	case err == nil, errors.As(err, &queued): // the next listing tries again
		return nil
	case isFault[*types.NotAuthenticated](err):
		return err
	}
	var affected []vm
	for _, members := range waiting {
		affected = append(affected, members...)
	}
	addNotice(shown, affected, fmt.Sprintf("the anti-affinity rule is not in force: %v", err))
	return nil
}

// addNotice adds a notice to the machines of the VMs.
func addNotice(shown []cloud.Resource, affected []vm, what string) {
	ours := map[string]bool{}
	for _, m := range affected {
		token, _ := m.tags()
		ours[token] = true
	}
	for i, r := range shown {
		switch {
		case !ours[r.Token]:
		case r.Notice == "":
			shown[i].Notice = what
		default:
			shown[i].Notice = r.Notice + "; " + what
		}
	}
}

// updateRules compares the rules of the compute clusters with the groups that have VMs there, and
// changes what differs. The next run checks whether the change was made.
func (d *driver) updateRules(ctx context.Context, s *session, waiting map[string][]vm) error {
	placed, err := d.ruleMembers(ctx, s, waiting)
	if err != nil {
		return err
	}
	clusters, err := s.readObjects(ctx, d.page, slices.Collect(maps.Keys(placed)), []string{"configurationEx"})
	if err != nil {
		return err
	}
	var errs []error
	for _, cluster := range clusters {
		config, _ := cluster.properties["configurationEx"].(types.ClusterConfigInfoEx)
		var changes []types.ClusterRuleSpec
		for rule, members := range placed[cluster.ref] {
			if change := changeOf(config.Rule, rule, members); change != nil {
				changes = append(changes, *change)
			} else {
				d.groups.markInRule(members)
			}
		}
		if len(changes) > 0 {
			errs = append(errs, d.changeRules(ctx, s, cluster.ref, changes))
		}
	}
	return errors.Join(errs...)
}

// ruleMembers returns the members of each rule in each compute cluster.
func (d *driver) ruleMembers(ctx context.Context, s *session,
	waiting map[string][]vm) (map[types.ManagedObjectReference]map[string][]types.ManagedObjectReference, error) {
	rules := map[types.ManagedObjectReference]string{}
	for rule, members := range waiting {
		for _, m := range members {
			rules[m.ref] = rule
		}
	}
	vms, err := s.readObjects(ctx, d.page, slices.Collect(maps.Keys(rules)), []string{"resourcePool"})
	if err != nil {
		return nil, err
	}
	poolOf, ownerOf := map[types.ManagedObjectReference]types.ManagedObjectReference{},
		map[types.ManagedObjectReference]types.ManagedObjectReference{}
	for _, m := range vms {
		if pool, ok := m.properties["resourcePool"].(types.ManagedObjectReference); ok { // otherwise it is in no pool yet
			poolOf[m.ref], ownerOf[pool] = pool, types.ManagedObjectReference{}
		}
	}
	var objects []types.ObjectSpec
	for pool := range ownerOf {
		objects = append(objects, types.ObjectSpec{Obj: pool})
	}
	if len(objects) == 0 {
		return nil, nil
	}
	pools, err := s.retrieve(ctx, d.page, "ResourcePool", objects, []string{"owner"})
	if err != nil {
		return nil, err
	}
	for _, pool := range pools {
		ownerOf[pool.ref], _ = pool.properties["owner"].(types.ManagedObjectReference)
	}
	all := map[types.ManagedObjectReference]map[string][]types.ManagedObjectReference{}
	for ref, pool := range poolOf {
		owner := ownerOf[pool]
		switch owner.Type {
		case "ClusterComputeResource":
			if all[owner] == nil {
				all[owner] = map[string][]types.ManagedObjectReference{}
			}
			all[owner][rules[ref]] = append(all[owner][rules[ref]], ref)
		case "ComputeResource": // a standalone host: there is no other host to choose
			d.groups.markInRule([]types.ManagedObjectReference{ref})
		}
	}
	return all, nil
}

// changeOf returns the change that a rule needs, or nil for none or for fewer than two VMs.
func changeOf(rules []types.BaseClusterRuleInfo, name string, members []types.ManagedObjectReference) *types.ClusterRuleSpec {
	if len(members) < 2 {
		return nil
	}
	byValue := func(a, b types.ManagedObjectReference) int { return strings.Compare(a.Value, b.Value) }
	members = slices.SortedFunc(slices.Values(members), byValue)
	wanted := &types.ClusterAntiAffinityRuleSpec{
		// Not mandatory: after a host failure, two machines may share a host for a while.
		ClusterRuleInfo: types.ClusterRuleInfo{Name: name, Enabled: ptr.To(true), Mandatory: ptr.To(false)},
		Vm:              members,
	}
	for _, rule := range rules {
		info := rule.GetClusterRuleInfo()
		if info.Name != name {
			continue
		}
		is, ok := rule.(*types.ClusterAntiAffinityRuleSpec)
		if ok && ptr.Deref(info.Enabled, false) && slices.Equal(slices.SortedFunc(slices.Values(is.Vm), byValue), members) {
			return nil
		}
		wanted.Key, wanted.RuleUuid = info.Key, info.RuleUuid
		return &types.ClusterRuleSpec{ArrayUpdateSpec: types.ArrayUpdateSpec{Operation: types.ArrayUpdateOperationEdit}, Info: wanted}
	}
	return &types.ClusterRuleSpec{ArrayUpdateSpec: types.ArrayUpdateSpec{Operation: types.ArrayUpdateOperationAdd}, Info: wanted}
}

// changeRules starts the change unless the previous one still runs. If the previous one has failed,
// changeRules also returns its error.
func (d *driver) changeRules(ctx context.Context, s *session, cluster types.ManagedObjectReference, changes []types.ClusterRuleSpec) error {
	d.groups.mu.Lock()
	task, known := d.groups.tasks[cluster]
	d.groups.mu.Unlock()
	var failed error
	if known {
		answers, err := s.readObjects(ctx, d.page, []types.ManagedObjectReference{task}, []string{"info.state", "info.error"})
		if err != nil {
			return err
		}
		for _, answer := range answers {
			switch answer.properties["info.state"] {
			case types.TaskInfoStateError:
				failed = s.taskError("ReconfigureComputeResource_Task", answer)
			case types.TaskInfoStateQueued, types.TaskInfoStateRunning:
				return nil
			}
		}
	}
	answer, err := methods.ReconfigureComputeResource_Task(ctx, s, &types.ReconfigureComputeResource_Task{
		This: cluster, Modify: true, Spec: &types.ClusterConfigSpecEx{RulesSpec: changes},
	})
	if err != nil {
		return err
	}
	d.groups.mu.Lock()
	defer d.groups.mu.Unlock()
	d.groups.tasks[cluster] = answer.Returnval
	return failed
}
