// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/test/testkit"
)

// customResources returns the CRDs in config/crd, by kind.
func customResources(t *testing.T) map[string]*apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob(testkit.Path(t, "config/crd/bases/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("find CRDs: %v, %v", files, err)
	}
	all := map[string]*apiextensionsv1.CustomResourceDefinition{}
	for _, file := range files {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		text, err := os.ReadFile(file)
		if err == nil {
			err = yaml.Unmarshal(text, crd)
		}
		if err != nil {
			t.Fatalf("read CRD %s: %v", file, err)
		}
		all[crd.Spec.Names.Kind] = crd
	}
	return all
}

func condition(kind string, is metav1.ConditionStatus, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: is, Reason: reason, Message: "the cause of " + reason}
}

// row returns what "kubectl get" shows for an object, without its name and age, as "<column>=<value>". Empty columns
// are omitted.
func row(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition, o any) []string {
	t.Helper()
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	var cells []string
	for _, column := range crd.Spec.Versions[0].AdditionalPrinterColumns {
		path, text := jsonpath.New(column.Name).AllowMissingKeys(true), &strings.Builder{}
		if err := path.Parse("{" + column.JSONPath + "}"); err != nil {
			t.Fatalf("column %s: %v", column.Name, err)
		}
		if err := path.Execute(text, content); err != nil {
			t.Fatalf("column %s: %v", column.Name, err)
		}
		if column.Type != "date" && column.Priority == 0 && text.Len() > 0 {
			cells = append(cells, column.Name+"="+text.String())
		}
	}
	return cells
}

func TestColumnsShowWhatKeepsAnObjectFromBeingReady(t *testing.T) {
	cluster, project, binding, plan := &v1.Cluster{}, &v1.Project{}, &v1.ClusterRoleTemplateBinding{}, &v1.Plan{}
	cluster.Status.Conditions = []metav1.Condition{
		condition(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonTunnelLost),
	}
	project.Status.Conditions = []metav1.Condition{
		condition(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonConflict),
		condition(v1.ConditionQuotaFits, metav1.ConditionFalse, v1.ReasonQuotaSpent),
	}
	binding.Spec.RoleTemplateName = "editor"
	binding.Status.Conditions = []metav1.Condition{condition(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonConflict)}
	plan.Spec.Version = "v2"
	plan.Status.Conditions = []metav1.Condition{
		condition(v1.ConditionReady, metav1.ConditionFalse, v1.ReasonTooManyFailures),
		condition(v1.ConditionComplete, metav1.ConditionFalse, v1.ReasonTooManyFailures),
		condition(v1.ConditionStalled, metav1.ConditionTrue, v1.ReasonTooManyFailures),
	}
	crds := customResources(t)
	for kind, tt := range map[string]struct {
		object any
		want   []string
	}{
		"Cluster":                    {cluster, []string{"Ready=False", "Reason=TunnelLost"}},
		"Project":                    {project, []string{"Ready=False", "Reason=Conflict", "Quota-Fits=False"}},
		"ClusterRoleTemplateBinding": {binding, []string{"Role=editor", "Ready=False", "Reason=Conflict"}},
		"Plan":                       {plan, []string{"Version=v2", "Complete=False", "Reason=TooManyFailures"}},
	} {
		if got := row(t, crds[kind], tt.object); !slices.Equal(got, tt.want) {
			t.Errorf("a %s that is not Ready shows %q, want %q", kind, got, tt.want)
		}
	}
}
