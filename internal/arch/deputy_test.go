// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package arch

import (
	"fmt"
	"go/ast"
	"maps"
	"slices"
	"strings"
	"testing"
)

// unguarded returns the writes of the manager that bypass internal/owned, by package, function and verb, each with the
// reason. The manager has more rights than most users. If an object is changed or replaced between a read and a write
// of the manager, the write must fail with a conflict. Patches with MergeFromWithOptimisticLock do, and creating an
// object that exists fails anyway.
func unguarded() map[string]string {
	const read, own = "it updates the object that was read, with its UID and version in it", "in the manager's own namespace, where no tenant writes: "
	return map[string]string{
		"controllers/authority.Keeper.take Update":      read,
		"controllers/authority.Loader.update Update":    read,
		"controllers/authority.Publisher.publish Apply": own + "it writes the hub's public certificates from memory",
		"controllers/baseline.Reconciler.record Update": read,
		"controllers/cluster.Reconciler.applyMetadata Apply": "it has the UID that was read, and writes only labels " +
			"that the policy drover-cluster-facts reserves for the manager, and its finalizer",
		"controllers/provision/installation.Reconciler.save Update": read,
		"controllers/inventory.Reconciler.apply Apply": "it has the UID and version of the profile that was " +
			"found; a new profile has an immutable manager, so another's is refused",
		"controllers/inventory.Reconciler.applyStatus Apply": "API servers do not check the UID of a status; the " +
			"content comes from the Cluster and not from a profile",
		"controllers/role.BuiltIn.apply Update":            read,
		"controllers/signin.Keys.write Update":             read,
		"internal/checkpoint.leases.Update Update":         read,
		"internal/provision/clusterapi.SetPaused Patch":    "its patch has the UID and version that were read",
		"internal/registration.Server.claim Update":        read,
		"internal/registration.Server.write Update":        read,
		"internal/signin/scripttoken.Server.noteUse Patch": "its patch has the UID and version that were read",
		"internal/signin/scripttoken.Server.revoke Delete": own + "it has the UID that was read, and a token is " +
			"revoked in any state",
		"internal/signin/session.Store.ClaimAsking Update": read,
		"internal/signin/session.Store.EndAsking Update":   read,
		"internal/signin/session.Store.NoteDirect Patch":   own + "its patch has the UID, and only adds",
		"internal/signin/session.Store.Revoke Patch":       own + "it only ends a session, in any state",
		"internal/signin/session.Store.Save Update": "its callers have read the session from the API " +
			"server, with its UID and version in it",
		"internal/signin/session.Store.makeRoom Delete": own + "it has the UID that was read, and even a " +
			"session in use can be removed",
		"internal/status.Update.Commit Patch": "API servers do not check the UID of a status; it " +
			"contains observations and no tenant data, and the next reconcile corrects it",
	}
}

func TestObjectsAreWrittenOnlyInTheVersionRead(t *testing.T) {
	report(t, deputyProblems(goFiles(t), unguarded()))
}

// deputyProblems lists unconditional writes with the manager's client, and unused exceptions. It sees names but no
// types: it recognizes a client by the context argument of a call, or by its name where one of its methods is used as a
// value.
func deputyProblems(files []source, allowed map[string]string) []string {
	var problems []string
	used := map[string]bool{}
	for _, f := range files {
		if f.test() || f.dir() == "internal/owned" || !inside(f.dir(), "controllers") && !inside(f.dir(), "internal") {
			continue
		}
		for _, declared := range f.ast.Decls {
			function, ok := declared.(*ast.FuncDecl)
			if !ok {
				continue
			}
			for _, write := range unconditional(function) {
				name := fmt.Sprintf("%s.%s%s %s", f.dir(), ofType(function), function.Name.Name, write.Sel.Name)
				if used[name] = true; allowed[name] == "" {
					problems = append(
						problems,
						fmt.Sprintf(
							"%s: %s writes without the UID and version that were read: use internal/owned or MergeFromWithOptimisticLock",
							f.at(write), name,
						),
					)
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(allowed)) {
		if !used[name] {
			problems = append(problems, name+": the exception matches no write: remove it")
		}
	}
	return problems
}

// ofType returns the receiver type of a method followed by a dot, or "" for a function.
func ofType(function *ast.FuncDecl) (name string) {
	if function.Recv == nil {
		return ""
	}
	ast.Inspect(function.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name + "."
		}
		return name == ""
	})
	return name
}

// unconditional returns the writes in a function except for patches with an optimistic lock.
func unconditional(function *ast.FuncDecl) (writes []*ast.SelectorExpr) {
	called := map[*ast.SelectorExpr]*ast.CallExpr{}
	ast.Inspect(function, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if selector, ok := call.Fun.(*ast.SelectorExpr); ok {
				called[selector] = call
			}
		}
		return true
	})
	ast.Inspect(function, func(n ast.Node) bool {
		selector, ok := n.(*ast.SelectorExpr)
		if !ok || !slices.Contains([]string{"Update", "Patch", "Apply", "Delete", "DeleteAllOf"}, selector.Sel.Name) {
			return true
		}
		call, isCall := called[selector]
		switch {
		case isCall && (!takesContext(call) || receiver(selector) == "owned"):
		case isCall && locked(call):
		case !isCall && !strings.HasSuffix(strings.ToLower(receiver(selector)), "client") && !strings.HasSuffix(strings.ToLower(receiver(selector)), "writer"):
		default:
			writes = append(writes, selector)
		}
		return true
	})
	return writes
}

// takesContext reports whether a call has at least two arguments and the first one is a context.
func takesContext(call *ast.CallExpr) bool {
	if len(call.Args) < 2 {
		return false
	}
	switch first := call.Args[0].(type) {
	case *ast.Ident:
		return strings.HasSuffix(strings.ToLower(first.Name), "ctx")
	case *ast.CallExpr:
		selector, ok := first.Fun.(*ast.SelectorExpr)
		return ok && (selector.Sel.Name == "Context" || receiver(selector) == "context")
	}
	return false
}

// receiver returns the last name before the name of the method.
func receiver(selector *ast.SelectorExpr) string {
	switch x := selector.X.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

// locked reports whether an argument of a call is a patch with an optimistic lock.
func locked(call *ast.CallExpr) (found bool) {
	for _, arg := range call.Args {
		ast.Inspect(arg, func(n ast.Node) bool {
			name, ok := n.(*ast.Ident)
			found = found || ok && name.Name == "MergeFromWithOptimisticLock"
			return !found
		})
	}
	return found
}

func TestDeputyRule(t *testing.T) {
	const exception = "controllers/x.f Apply"
	for name, tt := range map[string]struct{ path, body, want string }{
		"an apply fails": {
			"controllers/x/a.go", "r.Client.Apply(ctx, want)", "controllers/x/a.go:4: controllers/x.f Apply writes without",
		},
		"an update fails": {
			"internal/x/a.go", "s.writer.Update(ctx, secret)", "internal/x.f Update",
		},
		"a patch fails": {
			"internal/x/a.go", "c.Patch(r.Context(), o, client.RawPatch(a, b))", "internal/x.f Patch",
		},
		"a deletion fails": {
			"internal/x/a.go", "hub.Delete(context.TODO(), o)", "internal/x.f Delete",
		},
		"a deletion by the UID alone fails": {
			"internal/x/a.go", "hub.Delete(ctx, o, client.Preconditions{UID: &uid})", "internal/x.f Delete",
		},
		"a status fails": {"internal/x/a.go", "c.Status().Patch(ctx, o, p)", "internal/x.f Patch"},
		"a method as a value fails": {
			"controllers/x/a.go", "write := k.Client.Update; _ = write", "controllers/x.f Update",
		},
		"the helper passes": {
			"controllers/x/a.go", "owned.Apply(ctx, r.Client, part, by); owned.Delete(ctx, r.Client, o)", "",
		},
		"a patch with an optimistic lock passes": {
			"controllers/x/a.go", "r.Client.Patch(ctx, o, client.MergeFromWithOptions(b, client.MergeFromWithOptimisticLock{}))",
			"",
		},
		"a creation passes": {"controllers/x/a.go", "r.Client.Create(ctx, o)", ""},
		"what is no client's passes": {
			"controllers/x/a.go", "trust.Apply(state, step, now); store.Delete(key)", "",
		},
		"the helper itself is not judged":           {"internal/owned/a.go", "hub.Delete(ctx, o)", ""},
		"a test is not judged":                      {"controllers/x/a_test.go", "c.Delete(ctx, o)", ""},
		"the agent, which has a member, is not":     {"agent/x/a.go", "c.Delete(ctx, o)", ""},
		"the plugin, which has its caller's rights": {"cmd/x/a.go", "c.Delete(ctx, o)", ""},
	} {
		t.Run(name, func(t *testing.T) {
			expect(t, deputyProblems([]source{fixture(t, tt.path, "package a\n\nfunc f() {\n"+tt.body+"\n}\n")}, nil), tt.want)
		})
	}
	t.Run("an exception with a reason passes, and one for nothing fails", func(t *testing.T) {
		planted := fixture(t, "controllers/x/a.go", "package a\n\nfunc f() {\nr.Client.Apply(ctx, want)\n}\n")
		expect(t, deputyProblems([]source{planted}, map[string]string{exception: "a reason"}), "")
		expect(t, deputyProblems([]source{planted}, map[string]string{exception: ""}), "writes without")
		expect(t, deputyProblems(nil, map[string]string{exception: "a reason"}), "the exception matches no write")
	})
}
