// SPDX-License-Identifier: Apache-2.0

package render

import (
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"

	bootstrapv1 "github.com/drover-io/drover/api/bootstrap/v1beta1"
)

// The keys of the Secret in spec.host.subscription.
const (
	organizationKey  = "organization"
	activationKeyKey = "activationKey"
)

// SecretKeys returns the values that a spec takes from Secrets of its namespace, sorted and without
// duplicates.
func SecretKeys(spec *bootstrapv1.DroverConfigSpec) []bootstrapv1.SecretKey {
	var out []bootstrapv1.SecretKey
	for _, f := range spec.Files {
		if f.ContentFrom.Secret.Name != "" {
			out = append(out, f.ContentFrom.Secret)
		}
	}
	if name := spec.Containerd.Credentials.Name; name != "" {
		out = append(out, credentials(spec))
	}
	if name := spec.Host.Subscription.Name; name != "" {
		out = append(out, bootstrapv1.SecretKey{Name: name, Key: organizationKey}, bootstrapv1.SecretKey{Name: name, Key: activationKeyKey})
	}
	slices.SortFunc(out, compareSecretKeys)
	return slices.Compact(out)
}

func compareSecretKeys(a, b bootstrapv1.SecretKey) int {
	return slices.Compare([]string{a.Name, a.Key}, []string{b.Name, b.Key})
}

func credentials(spec *bootstrapv1.DroverConfigSpec) bootstrapv1.SecretKey {
	return bootstrapv1.SecretKey{Name: spec.Containerd.Credentials.Name, Key: corev1.DockerConfigJsonKey}
}

// checkSecrets validates values that the API server could not see. Its messages contain the key,
// never the value.
func (in Input) checkSecrets() error {
	total := size(in.Spec)
	for _, key := range SecretKeys(in.Spec) {
		value, ok := in.Secrets[key]
		if !ok {
			return fmt.Errorf("the key %q of the Secret %q is missing", shorten(key.Key), shorten(key.Name))
		}
		if total += len(value); total > MaxBytes {
			return fmt.Errorf("files, commands and keys, with what comes from Secrets, exceed %d bytes in all", MaxBytes)
		}
		if key.Name == in.Spec.Host.Subscription.Name && !(plain(string(value)) && len(value) > 0) {
			return fmt.Errorf("the key %q of the Secret %q must be one printable line", key.Key, shorten(key.Name))
		}
	}
	if in.Spec.Containerd.Credentials.Name != "" {
		config := struct {
			Auths map[string]struct{} `json:"auths"`
		}{}
		if value := in.Secrets[credentials(in.Spec)]; !utf8.Valid(value) || json.Unmarshal(value, &config) != nil || len(config.Auths) == 0 {
			return fmt.Errorf("the Secret %q holds no registry's credentials under %q", shorten(in.Spec.Containerd.Credentials.Name),
				corev1.DockerConfigJsonKey)
		}
	}
	return nil
}
