// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rancher

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
)

// NoName is the name for a principal in a Mapping to which no rights are granted.
const NoName = "-"

// localProvider is the provider of users who sign in to the hub with a password.
const localProvider = "local"

// Mapping maps Rancher's providers and principals to their names in Drover. The export writes the Mapping, and a user
// completes it.
type Mapping struct {
	// Providers are the Rancher providers that principals belong to.
	Providers []Provider `json:"providers"`
	// Principals are the principals that bindings refer to.
	Principals []Principal `json:"principals"`
}

// Provider is a Rancher provider and the AuthProvider that replaces it.
type Provider struct {
	Rancher string `json:"rancher"`
	// Name is the name of the AuthProvider.
	Name string `json:"name"`
	// AcceptSuggested accepts the suggested names of the provider's principals.
	AcceptSuggested bool `json:"acceptSuggested"`
}

// Principal is a user or group in Rancher, together with its name in Drover.
type Principal struct {
	Rancher string         `json:"rancher"`
	Kind    v1.SubjectKind `json:"kind"`
	// Name is the name in Drover that a user entered to complete the Mapping. It is empty if no name was entered, and
	// NoName if no rights should be granted to the principal.
	Name string `json:"name"`
	// Decided is the name that is derived from Rancher's records. Each export derives it again.
	Decided string `json:"decided,omitempty"`
	// Suggested is a name that a user should confirm.
	Suggested string `json:"suggested,omitempty"`
	// Why explains the origin of the name, or why there is no name.
	Why string `json:"why,omitempty"`
}

// effective returns the name that is used in bindings.
func (p Principal) effective() string { return cmp.Or(p.Name, p.Decided) }

const mappingHead = `# The names of Rancher's principals in Drover. Written by "kubectl drover rancher export". Set the name of each principal without a decided name, and export
# again with --principals and this file. The name is used in Drover's bindings, such as github:alice or ldap:ops; "-" grants nothing. It takes precedence over
# the decided name, which each export determines again from the names of the providers below. Suggested names are not used unless acceptSuggested is true for
# their provider. The next export keeps names and providers, but not comments.
`

// YAML returns the content of the Mapping's file.
func (m Mapping) YAML() ([]byte, error) {
	text, err := yaml.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write principals: %w", err)
	}
	return append([]byte(mappingHead), text...), nil
}

// ReadMapping parses the Mapping's file. It rejects duplicate entries and names that a Drover binding would reject.
func ReadMapping(text []byte) (Mapping, error) {
	var m Mapping
	if err := yaml.UnmarshalStrict(text, &m); err != nil {
		return Mapping{}, fmt.Errorf("read principals: %w", err)
	}
	var errs []error
	providers := map[string]bool{}
	for _, p := range m.Providers {
		switch {
		case p.Rancher == "" || providers[p.Rancher]:
			errs = append(errs, fmt.Errorf("provider %q is listed twice or has no name in Rancher", p.Rancher))
		case !validProvider(p.Name):
			errs = append(errs, fmt.Errorf("provider %q: %q is not a valid name of an AuthProvider", p.Rancher, p.Name))
		}
		providers[p.Rancher] = true
	}
	seen := map[string]bool{}
	for _, p := range m.Principals {
		if p.Rancher == "" || seen[p.Rancher] {
			errs = append(errs, fmt.Errorf("principal %q is listed twice or has no name in Rancher", p.Rancher))
		} else if problem := problemOf(p); problem != "" {
			errs = append(errs, fmt.Errorf("principal %q: %s", p.Rancher, problem))
		}
		seen[p.Rancher] = true
	}
	return m, errors.Join(errs...)
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// validProvider reports whether the name is valid for an AuthProvider.
func validProvider(name string) bool {
	return dnsLabel.MatchString(name) && !slices.Contains([]string{"hub", "system", localProvider, "kubeadm", "eks"}, name)
}

func problemOf(p Principal) string {
	switch {
	case p.Kind != v1.SubjectUser && p.Kind != v1.SubjectGroup:
		return fmt.Sprintf("kind %q is neither User nor Group", p.Kind)
	case p.Name == "" || p.Name == NoName:
		return ""
	case !validSubject(p.Name):
		return fmt.Sprintf("%q is not a valid name in a binding: use provider:name", p.Name)
	}
	return ""
}

// validSubject reports whether a name belongs to a provider and is valid in a Drover binding. A name without a provider
// would refer to a user or group that the member itself defines.
func validSubject(name string) bool {
	provider, rest, found := strings.Cut(name, ":")
	return found && provider != "" && rest != "" && len(name) <= 1024 && strings.TrimSpace(name) == name && !strings.HasSuffix(name, ":") &&
		provider != "system" && provider != "drover" && !strings.ContainsFunc(name, func(r rune) bool { return !unicode.IsPrint(r) })
}

// order sorts the entries, so that the same principals always produce the same file.
func (m *Mapping) order() {
	slices.SortFunc(m.Providers, func(a, b Provider) int { return cmp.Compare(a.Rancher, b.Rancher) })
	slices.SortFunc(m.Principals, func(a, b Principal) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Rancher, b.Rancher))
	})
}
