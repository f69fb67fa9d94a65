// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"regexp"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/util/validation/field"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// configItem finds the list and the index in the path of a refused field.
var configItem = regexp.MustCompile(`(?:^|\.)(files|preKubeletCommands|postKubeletCommands|users)\[([0-9]+)\]`)

// judge takes out of a pool's setup what Drover's webhook would refuse: Cluster API's provider
// accepts more, and its templates can't be changed without a rollout. What can't be taken out alone
// is refused by the management cluster.
func (s findings) judge(pool *Pool, target *Target) {
	if target.Refuses == nil {
		return
	}
	for s.drops(pool, target, target.Refuses(&target.configTemplate(pool).Spec.Template.Spec)) {
	}
}

// drops takes the items of errs out of the pool's setup, and reports whether there was one: some
// checks come after others.
func (s findings) drops(pool *Pool, target *Target, errs field.ErrorList) (dropped bool) {
	const at = "spec.template.spec."
	c, base := &pool.Config, &target.Bootstrap.Spec.Template.Spec
	why := map[string]map[int]string{}
	for _, e := range errs {
		if e.Field == "spec.format" && c.Format != "" {
			s.addRefused(at+"format", "it is %s, and for DroverConfigTemplate %s it can't be: %s; take a template for the system of the pool's image", c.Format, target.Bootstrap.Name, e.Detail)
			c.Format, dropped = "", true
		}
		if m := configItem.FindStringSubmatch(e.Field); m != nil {
			i, _ := strconv.Atoi(m[2]) // digits
			if why[m[1]] == nil {
				why[m[1]] = map[int]string{}
			}
			why[m[1]][i] = e.Detail
		}
	}
	c.Files = accepted(c.Files, len(base.Files), why["files"], func(f bootstrapv1.File, why string) {
		s.addLost(at+"files", "new machines do not get %s, which Drover refuses: %s", f.Path, why)
	}, &dropped)
	c.PreKubeletCommands = accepted(c.PreKubeletCommands, len(base.PreKubeletCommands), why["preKubeletCommands"], func(_, why string) {
		s.addLost(at+"preKubeadmCommands", "new machines do not run one, which Drover refuses: %s", why)
	}, &dropped)
	c.PostKubeletCommands = accepted(c.PostKubeletCommands, len(base.PostKubeletCommands), why["postKubeletCommands"], func(_, why string) {
		s.addLost(at+"postKubeadmCommands", "new machines do not run one, which Drover refuses: %s", why)
	}, &dropped)
	c.Host.Users = accepted(c.Host.Users, len(base.Host.Users), why["users"], func(u bootstrapv1.User, why string) {
		s.addLost(at+"users", "new machines do not have the user %s, whom Drover refuses: %s", u.Name, why)
	}, &dropped)
	return dropped
}

// accepted returns the items that are not refused. Indices count after those of the target's
// template.
func accepted[T any](items []T, first int, why map[int]string, say func(T, string), dropped *bool) []T {
	i := first - 1
	return slices.DeleteFunc(items, func(item T) bool {
		i++
		reason, refused := why[i]
		if refused {
			say(item, reason)
			*dropped = true
		}
		return refused
	})
}
