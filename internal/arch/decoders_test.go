// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// decoding returns the functions that decode JSON, YAML or XML without a limit on the result, by package path.
func decoding() map[string][]string {
	return map[string][]string{
		"encoding/json": {"Unmarshal", "NewDecoder"},
		"encoding/xml":  {"Unmarshal", "NewDecoder"},
		"encoding/gob":  {"NewDecoder"},
		"sigs.k8s.io/json": {
			"UnmarshalCaseSensitivePreserveInts", "UnmarshalStrict", "NewDecoderCaseSensitivePreserveInts",
		},
		"sigs.k8s.io/yaml":                           {"Unmarshal", "UnmarshalStrict", "YAMLToJSON", "YAMLToJSONStrict"},
		"go.yaml.in/yaml/v2":                         {"Unmarshal", "UnmarshalStrict", "NewDecoder"},
		"go.yaml.in/yaml/v3":                         {"Unmarshal", "NewDecoder"},
		"k8s.io/apimachinery/pkg/util/json":          {"Unmarshal"},
		"k8s.io/apimachinery/pkg/util/yaml":          {"Unmarshal", "NewYAMLOrJSONDecoder", "NewYAMLToJSONDecoder", "ToJSON"},
		"k8s.io/apimachinery/pkg/runtime":            {"Decode", "DecodeInto"},
		"k8s.io/apimachinery/pkg/runtime/serializer": {"NewCodecFactory"},
		"k8s.io/client-go/tools/clientcmd":           {"Load", "NewClientConfigFromBytes", "RESTConfigFromKubeConfig"},
	}
}

// trusted returns the files and folders that can use these functions, with the reason. Either their input is bounded,
// or it comes from someone who could do more harm than filling the memory.
func trusted() map[string]string {
	const (
		own   = "the program itself wrote it, where no other user can write"
		admin = "only the operator of the program can write it"
		hub   = "it comes from the hub, which controls its agents"
		built = "it is part of the program"
		apis  = "it is an answer of the agent's own API server, which has limits of its own"
	)
	return map[string]string{
		"internal/untrusted/":                 "it counts before it decodes",
		"internal/provision/remote/remote.go": "untrusted has converted it to bounded JSON",
		"internal/baseline/baseline.go":       "untrusted has checked it; this decoder preserves integers",
		"internal/audit/redact.go":            "untrusted has checked it; this decoder preserves the form of numbers",
		"internal/config/config.go":           admin,
		"internal/provision/config/config.go": admin,
		"internal/policies/policies.go":       built,
		"controllers/role/builtin.go":         built,
		"internal/tenancy/guards.go":          built,
		"internal/registration/deployment.go": "it was read from the API server, within the limits of its schema",
		"internal/protocol/settings.go":       "it is called while a counted text is decoded, or by agents: " + hub,
		"internal/set/set.go":                 hub,
		"internal/signin/session/session.go":  own,
		"internal/signin/keys/keys.go":        own,
		"internal/signin/keyring/seal.go":     "it was sealed with the hub's own key",
		"agent/apply/":                        "the hub's sets, and answers of the member's API server",
		"agent/baseline/":                     "the agent's own Secret, and " + apis,
		"agent/daemon/loglevel.go":            "it is an answer of the agent itself, of which at most four KiB are read",
		"agent/deployment/":                   "it comes from the hub or from the member's API server",
		"agent/direct/access.go":              hub,
		"agent/host/":                         own,
		"agent/identity/":                     "the agent's own Secret, and " + hub,
		"agent/kube/":                         apis,
		"agent/link/branch.go":                hub,
		"agent/plan/install.go":               built,
		"agent/report/probe.go":               apis,
		"cmd/kubectl-drover/":                 "it runs for one user, on their machine, and ends",
	}
}

// programs returns the folders of the code that ships.
func programs() []string { return []string{"agent", "api", "cmd", "controllers", "internal"} }

// Input from others must be counted before it is decoded: a megabyte of JSON can become fifty megabytes of maps, and a
// kilobyte of YAML can become gigabytes.
func TestInputFromOthersIsDecodedWithinBounds(t *testing.T) {
	files, used := goFiles(t), map[string]bool{}
	report(t, decoderProblems(files, trusted(), used))
	for path := range trusted() {
		if !used[path] {
			t.Errorf("%s uses no decoding function: remove it from the list of exceptions", path)
		}
	}
}

func decoderProblems(files []source, allowed map[string]string, used map[string]bool) []string {
	var problems []string
	for _, f := range files {
		top, _, _ := strings.Cut(f.path, "/")
		if f.test() || !slices.Contains(programs(), top) {
			continue
		}
		for _, call := range decoders(f) {
			exception := ""
			for path := range allowed {
				if f.path == path || strings.HasSuffix(path, "/") && strings.HasPrefix(f.path, path) {
					exception = path
				}
			}
			if used[exception] = true; exception == "" {
				problems = append(problems, fmt.Sprintf("%s decodes without limits: use internal/untrusted, "+
					"or add the file to internal/arch/decoders_test.go with the reason why its input is trusted", call))
			}
		}
	}
	return problems
}

// decoders lists the uses of decoding functions in a file.
func decoders(f source) []string {
	names := map[string][]string{} // of the packages in the file
	for _, spec := range f.ast.Imports {
		path := importOf(spec, "github.com/drover-dev/drover")
		if functions, known := decoding()[path]; known {
			name := path[strings.LastIndexByte(path, '/')+1:]
			if name == "v2" || name == "v3" {
				name = "yaml"
			}
			if spec.Name != nil {
				name = spec.Name.Name
			}
			names[name] = functions
		}
	}
	var found []string
	ast.Inspect(f.ast, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if name, ok := selector.X.(*ast.Ident); ok && slices.Contains(names[name.Name], selector.Sel.Name) || selector.Sel.Name == "UnmarshalJSON" || selector.Sel.Name == "UniversalDeserializer" {
			found = append(found, f.at(n)+": "+selector.Sel.Name)
		}
		return true
	})
	return found
}

func TestDecoderRule(t *testing.T) {
	for name, tt := range map[string]struct{ path, text, want string }{
		"JSON": {
			"controllers/plan/a.go", "package a\n\nimport \"encoding/json\"\n\nvar _ = json.Unmarshal\n",
			"use internal/untrusted",
		},
		"another name": {
			"internal/a/a.go", "package a\n\nimport j \"encoding/json\"\n\nvar _ = j.NewDecoder(nil)\n",
			"use internal/untrusted",
		},
		"YAML": {
			"internal/a/a.go", "package a\n\nimport \"sigs.k8s.io/yaml\"\n\nvar _ = yaml.UnmarshalStrict\n",
			"use internal/untrusted",
		},
		"a method": {
			"internal/a/a.go", "package a\n\nfunc f(o interface{ UnmarshalJSON([]byte) error }) { _ = o.UnmarshalJSON(nil) }\n",
			"use internal/untrusted",
		},
		"encoding": {"internal/a/a.go", "package a\n\nimport \"encoding/json\"\n\nvar _ = json.Marshal\n", ""},
		"a test": {
			"internal/a/a_test.go", "package a\n\nimport \"encoding/json\"\n\nvar _ = json.Unmarshal\n", "",
		},
		"what does not ship": {"hack/a.go", "package a\n\nimport \"encoding/json\"\n\nvar _ = json.Unmarshal\n", ""},
		"an exception":       {"internal/ours/a.go", "package a\n\nimport \"encoding/json\"\n\nvar _ = json.Unmarshal\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			allowed := map[string]string{"internal/ours/": "it is ours"}
			expect(t, decoderProblems([]source{fixture(t, tt.path, tt.text)}, allowed, map[string]bool{}), tt.want)
		})
	}
}
