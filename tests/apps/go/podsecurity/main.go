// Holds the pods of manifests against Kubernetes' own levels of Pod Security: podsecurity LEVEL FILE...
// Prints what is forbidden to each, and ends with 1 if anything is.
package main

import (
	"bytes"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"
)

func must[T any](value T, err error) T {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	return value
}

func main() {
	level := must(api.ParseLevel(os.Args[1]))
	evaluator := must(policy.NewEvaluator(policy.DefaultChecks()))
	pods, status := 0, 0
	for _, file := range os.Args[2:] {
		for _, text := range bytes.Split(must(os.ReadFile(file)), []byte("\n---\n")) {
			var pod corev1.Pod
			if err := yaml.Unmarshal(text, &pod); err != nil || pod.Kind != "Pod" {
				continue
			}
			pods++
			results := evaluator.EvaluatePod(api.LevelVersion{Level: level, Version: api.LatestVersion()}, &pod.ObjectMeta, &pod.Spec)
			said := policy.AggregateCheckResults(results)
			fmt.Printf("%s: %t %s\n", pod.Name, said.Allowed, said.ForbiddenDetail())
			if !said.Allowed {
				status = 1
			}
		}
	}
	if pods == 0 {
		fmt.Fprintln(os.Stderr, "no pod in", os.Args[2:])
		status = 2
	}
	os.Exit(status)
}
