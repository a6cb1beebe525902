// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/drover-dev/drover/test/testkit"
)

// plainText is the validation rule for texts that are shown or become names in members.
const plainText = `!self.matches(r'[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]')`

// freeText matches texts with arbitrary content: the input of programs, certificates in PEM, and Kubernetes structs,
// which Kubernetes itself validates.
var freeText = regexp.MustCompile(`^Plan\.(prepare|upgrade)\.(command|args|envs|envFrom|securityContext)\b|^Plan\.tolerations\b|` +
	`^Cluster\.agent\.(tolerations|affinity|nodeSelector)\b|^RoleTemplate\.rules\b|[sS]elector\.(matchLabels|matchExpressions)\b|^AuthProvider\.(oidc|ldap|github)\.caBundle$|^Cluster\.authorizedEndpoint\.caBundle$|^AuthProvider\.jwt\.issuer\.certificateAuthority$`)

// texts returns the paths of all strings in a schema that may contain a line break or another control character.
func texts(path string, schema apiextensionsv1.JSONSchemaProps) []string {
	var all []string
	for name, property := range schema.Properties {
		all = append(all, texts(path+"."+name, property)...)
	}
	if schema.Items != nil {
		all = append(all, texts(path, *schema.Items.Schema)...)
	}
	if schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		all = append(all, texts(path, *schema.AdditionalProperties.Schema)...)
	}
	plain := schema.Type != "string" || len(schema.Enum) > 0 || schema.Format != "" || freeText.MatchString(path) ||
		slices.ContainsFunc(schema.XValidations, func(rule apiextensionsv1.ValidationRule) bool {
			return rule.Rule == plainText || strings.HasPrefix(rule.Rule, "self.matches('^") || strings.HasPrefix(
				rule.Rule, `self.matches("^`,
			)
		})
	if schema.Pattern != "" {
		pattern := regexp.MustCompile(schema.Pattern)
		plain = plain || !slices.ContainsFunc(
			[]string{"a\nb", "a\x1bb", "https://a\x1b/b", "/\x1b", "1\n", "1h\n", "02:00\n"}, pattern.MatchString,
		)
	}
	if !plain {
		all = append(all, path)
	}
	return all
}

func TestNoNameHasControlCharacters(t *testing.T) {
	for _, crd := range customResources(t) {
		for _, path := range texts(crd.Spec.Names.Kind, crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]) {
			t.Errorf("%s may hold line breaks: give it a pattern, or the rule of the others", path)
		}
	}
}

// Text that could add lines to an error message, or reverse the text in a terminal, is rejected when it is written.
func testControlCharacters(t *testing.T, env *testkit.Env, namespace string) {
	const want = "must not contain line breaks or other control characters"
	for what, bad := range map[string]string{"a line break": "a\nb", "an escape code": "a\x1b[2Kb", "a C1 control": "a\u009bb", "a turn of direction": "a\u202eb", "an invisible character": "a\u200bb", "a line separator": "a\u2028b"} {
		for kind, format := range map[string]string{
			clusterBinding: "{clusterName: a, roleTemplateName: x, subject: {kind: User, name: %q}}",
			projectBinding: "{projectName: a, roleTemplateName: x, subject: {kind: Group, name: %q}}",
			roleTemplate:   "{context: Cluster, external: %q}",
			"Plan":         "{clusterName: a, version: v1, upgrade: {image: %q}}",
			"Cluster":      "{agent: {image: %q}}",
		} {
			o := object(t, namespace, kind, fmt.Sprintf(format, bad))
			if err := env.Client.Create(t.Context(), o, client.DryRunAll); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s in a %s: %v", what, kind, err)
			}
		}
	}
	names := "{clusterName: a, roleTemplateName: x, subject: {kind: User, name: %q}}"
	for _, good := range []string{"ldap:cn=José Müller,ou=é", "github:日本語", "saml:Alice B. O'Neil"} {
		if err := env.Client.Create(t.Context(), object(t, namespace, clusterBinding, fmt.Sprintf(names, good)), client.DryRunAll); err != nil {
			t.Error(err)
		}
	}
}
