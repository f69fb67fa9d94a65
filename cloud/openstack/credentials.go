// SPDX-License-Identifier: Apache-2.0

package openstack

import (
	"fmt"
	"strings"

	"github.com/gophercloud/gophercloud/v2/openstack/identity/v3/tokens"
	"sigs.k8s.io/yaml"

	infrav1 "github.com/drover-io/drover/api/infrastructure/v1beta1"
	"github.com/drover-io/drover/cloud"
	"github.com/drover-io/drover/cloud/driverkit"
)

// cloudsKey is the key in the credentials Secret.
const cloudsKey = "clouds.yaml"

// cloudEntry is one cloud of a clouds.yaml ("Configuration" in the OpenStack SDK's documentation),
// as far as the driver reads it. Fields that name a file are refused: a Secret is data.
type cloudEntry struct {
	Auth       authEntry `json:"auth"`
	AuthType   string    `json:"auth_type"`
	RegionName string    `json:"region_name"`
	Verify     *bool     `json:"verify"`
	CACert     string    `json:"cacert"`
	Cert       string    `json:"cert"`
	Key        string    `json:"key"`
}

type authEntry struct {
	AuthURL string `json:"auth_url"`

	Username       string `json:"username"`
	UserID         string `json:"user_id"`
	Password       string `json:"password"`
	UserDomainID   string `json:"user_domain_id"`
	UserDomainName string `json:"user_domain_name"`
	DomainID       string `json:"domain_id"`
	DomainName     string `json:"domain_name"`

	ProjectID string `json:"project_id"`

	ApplicationCredentialID     string `json:"application_credential_id"`
	ApplicationCredentialName   string `json:"application_credential_name"`
	ApplicationCredentialSecret string `json:"application_credential_secret"`

	Token string `json:"token"`
}

// login holds Keystone's login options, and the secrets that must not appear in text.
type login struct {
	options tokens.AuthOptions
	secrets []string
}

// redactor returns a redactor for the login's secrets and more.
func (l *login) redactor(more ...string) driverkit.Redactor {
	return driverkit.NewRedactor(append(more, l.secrets...)...)
}

// newLogin reads the Secret. Errors are InvalidSpec or Unauthorized.
func newLogin(account *infrav1.OpenStackAccount, credentials map[string][]byte) (login, error) {
	if len(credentials[cloudsKey]) == 0 {
		return login{}, cloud.Errorf(cloud.Unauthorized, "the credentials Secret's key %q is missing", cloudsKey)
	}
	entry, err := entryOf(credentials[cloudsKey], account.Cloud)
	if err != nil {
		return login{}, err
	}
	if err := entry.check(account); err != nil {
		return login{}, err
	}
	options, err := entry.options(account.ProjectID)
	if err != nil {
		return login{}, err
	}
	return login{options: options, secrets: []string{options.Password, options.ApplicationCredentialSecret, options.TokenID}}, nil
}

// entryOf returns the entry with the name, or the only entry if the name is "". It hides the
// parser's error, which may quote the file.
func entryOf(file []byte, name string) (cloudEntry, error) {
	var content struct {
		Clouds map[string]cloudEntry `json:"clouds"`
	}
	if err := yaml.Unmarshal(file, &content); err != nil {
		return cloudEntry{}, cloud.Invalid("the credentials Secret's %s is not a valid clouds.yaml", cloudsKey)
	}
	if entry, ok := content.Clouds[name]; ok {
		return entry, nil
	}
	if name == "" && len(content.Clouds) == 1 {
		for _, entry := range content.Clouds {
			return entry, nil
		}
	}
	return cloudEntry{}, cloud.Invalid("%s has %d clouds, and none is named %q: set spec.cloud.openstack.cloud",
		cloudsKey, len(content.Clouds), name)
}

// check refuses entries that contradict the account or weaken TLS verification.
func (e *cloudEntry) check(account *infrav1.OpenStackAccount) error {
	refuse := func(format string, args ...any) error {
		return cloud.Invalid("%s: %s", cloudsKey, fmt.Sprintf(format, args...))
	}
	switch {
	case e.Verify != nil && !*e.Verify:
		return refuse("verify: false is not allowed: put the CA certificate into spec.cloud.openstack.caBundle")
	case e.CACert != "":
		return refuse("cacert names a file, and Drover reads none: put its content into spec.cloud.openstack.caBundle")
	case e.Cert != "" || e.Key != "":
		return refuse("cert and key name files, and Drover reads none: put their content into the Secret's keys %s and %s", certificateKey,
			privateKey)
	case e.Auth.AuthURL == "":
		return refuse("auth_url is missing: it must be the account's %s", account.AuthURL)
	case identityURL(e.Auth.AuthURL) != identityURL(account.AuthURL):
		return refuse("auth_url is not the account's %s", account.AuthURL)
	case e.RegionName != "" && account.Region != "" && e.RegionName != account.Region:
		return refuse("region_name is not the account's %s", account.Region)
	case e.Auth.ProjectID != "" && e.Auth.ProjectID != account.ProjectID:
		return refuse("project_id is not the account's %s", account.ProjectID)
	}
	return nil
}

// options returns Keystone's login options for the entry.
func (e *cloudEntry) options(project string) (tokens.AuthOptions, error) {
	a, kind := e.Auth, strings.TrimPrefix(e.AuthType, "v3")
	options := tokens.AuthOptions{Username: a.Username, UserID: a.UserID}
	if a.UserID == "" {
		options.DomainID, options.DomainName = a.UserDomainID, a.UserDomainName
		if options.DomainID == "" && options.DomainName == "" {
			options.DomainID, options.DomainName = a.DomainID, a.DomainName
		}
		if options.DomainID != "" {
			options.DomainName = ""
		}
	} else {
		options.Username = ""
	}
	missing := func(what string) error {
		return cloud.Errorf(cloud.Unauthorized, "%s lacks %s", cloudsKey, what)
	}
	switch {
	case kind == "applicationcredential" || kind == "" && a.ApplicationCredentialSecret != "":
		options.ApplicationCredentialID, options.ApplicationCredentialSecret = a.ApplicationCredentialID, a.ApplicationCredentialSecret
		if a.ApplicationCredentialID != "" { // the ID implies the user
			options.Username, options.UserID, options.DomainID, options.DomainName = "", "", "", ""
		} else {
			options.ApplicationCredentialName = a.ApplicationCredentialName
		}
		if a.ApplicationCredentialSecret == "" || a.ApplicationCredentialID == "" && a.ApplicationCredentialName == "" {
			return options, missing("the application credential's ID and secret")
		}
		return options, nil // it has its own project
	case kind == "token" || kind == "" && a.Token != "":
		if a.Token == "" {
			return options, missing("the token")
		}
		options = tokens.AuthOptions{TokenID: a.Token}
	case kind == "password" || kind == "":
		if a.Password == "" || a.Username == "" && a.UserID == "" {
			return options, missing("username and password")
		}
		options.Password = a.Password
	default:
		return options, cloud.Invalid("%s: auth_type %q is not supported: use password, v3applicationcredential or token", cloudsKey,
			cloud.Clip(e.AuthType, 64))
	}
	options.Scope.ProjectID = project
	return options, nil
}

// identityURL returns Keystone's version 3 address, whether or not the URL includes the version.
func identityURL(url string) string {
	return strings.TrimSuffix(strings.TrimRight(url, "/"), "/v3") + "/v3/"
}
