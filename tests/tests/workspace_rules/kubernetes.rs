//! The manifests of packaging/kubernetes against the API's own schema, and what a schema cannot say of them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};

use super::root;

/// Definitions by name; its first line says where it is from.
const SCHEMA: &str = include_str!("../../schemas/kubernetes.json");
/// What is wrong with a value, and where.
type Faults = Vec<String>;

fn folder() -> PathBuf {
    root().join("packaging/kubernetes")
}

/// The objects of a file.
fn objects(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let read = serde_yaml_ng::Deserializer::from_str(&text).map(Value::deserialize);
    let read: Result<Vec<Value>, _> = read.collect();
    read.unwrap_or_else(|error| panic!("{path:?}: {error}"))
}

/// All objects of the base, its component and the examples, with the files that they are in.
fn all() -> Vec<(PathBuf, Value)> {
    let mut found = Vec::new();
    for folder in [folder(), folder().join("podmonitor")] {
        let entries = fs::read_dir(&folder).expect("the manifests are there");
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.extension().is_some_and(|it| it == "yaml") {
                let objects = objects(&path).into_iter();
                found.extend(objects.map(|object| (path.clone(), object)));
            }
        }
    }
    found
}

/// The parts of JSON Schema that the API's description is written in.
fn check(definitions: &Value, schema: &Value, value: &Value, at: &str, faults: &mut Faults) {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.trim_start_matches("#/$defs/");
        let definition = &definitions[name];
        assert!(definition.is_object(), "the schema has no {name}");
        return check(definitions, definition, value, at, faults);
    }
    // One of these that are two is as good as any: nothing is of two types.
    if let Some(choices) = schema["oneOf"].as_array() {
        let fits = choices.iter().any(|choice| {
            let mut faults = Faults::new();
            check(definitions, choice, value, at, &mut faults);
            faults.is_empty()
        });
        if !fits {
            faults.push(format!("{at}: {value} is none of {choices:?}"));
        }
        return;
    }
    // The API takes a null for what is absent. Nobody writes one on purpose.
    let kind = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    let types: Vec<&str> = match &schema["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let fits = types.contains(&kind) || (kind == "integer" && types.contains(&"number"));
    if kind == "null" || (!types.is_empty() && !fits) {
        faults.push(format!("{at}: {kind} in the place of {types:?}"));
        return;
    }
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        faults.push(format!("{at}: {value} is none of {allowed:?}"));
    }
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        let at = format!("{at}[{number}]");
        check(definitions, &schema["items"], item, &at, faults);
    }
    for (name, field) in value.as_object().into_iter().flatten() {
        let at = format!("{at}.{name}");
        let more = &schema["additionalProperties"];
        match schema["properties"].get(name) {
            Some(schema) => check(definitions, schema, field, &at, faults),
            None if more.is_object() => check(definitions, more, field, &at, faults),
            None if *more == false => faults.push(format!("{at}: there is no such field")),
            None => {}
        }
    }
    for name in schema["required"].as_array().into_iter().flatten() {
        if value.get(name.as_str().unwrap_or_default()).is_none() {
            faults.push(format!("{at}: {name} is missing"));
        }
    }
}

/// What kustomize and the Prometheus operator read is described by no schema of the API: the fields
/// that we use, with a list's items where they are objects.
fn other_schema(kind: &str) -> Option<Value> {
    let text = json!({"type": "string"});
    let texts = json!({"type": "array", "items": text});
    let metadata = json!({"$ref": "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"});
    let object = |required: &[&str], properties: Value| json!({"type": "object", "additionalProperties": false, "required": required, "properties": properties});
    let image = object(
        &["name", "newTag"],
        json!({"name": text, "newName": text, "newTag": text}),
    );
    let version = |version: &str| json!({"enum": [version]});
    Some(match kind {
        "Kustomization" => object(
            &["apiVersion", "kind", "resources"],
            json!({"apiVersion": version("kustomize.config.k8s.io/v1beta1"), "kind": text,
                "namespace": text, "resources": texts, "images": {"type": "array", "items": image}}),
        ),
        "Component" => object(
            &["apiVersion", "kind", "resources"],
            json!({"apiVersion": version("kustomize.config.k8s.io/v1alpha1"), "kind": text, "resources": texts}),
        ),
        "PodMonitor" => {
            let endpoint = object(
                &["port"],
                json!({"port": text, "path": text, "interval": text}),
            );
            let selector =
                json!({"$ref": "#/$defs/io.k8s.apimachinery.pkg.apis.meta.v1.LabelSelector"});
            let spec = object(
                &["selector", "podMetricsEndpoints"],
                json!({"selector": selector, "podMetricsEndpoints": {"type": "array", "items": endpoint}}),
            );
            object(
                &["apiVersion", "kind", "metadata", "spec"],
                json!({"apiVersion": version("monitoring.coreos.com/v1"), "kind": text,
                    "metadata": metadata, "spec": spec}),
            )
        }
        _ => return None,
    })
}

/// What the schemas say against an object.
fn faults(object: &Value) -> Faults {
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let definitions = &schema["$defs"];
    let kind = object["kind"].as_str().unwrap_or_default();
    let mut faults = Faults::new();
    let ours = match kind {
        "DaemonSet" => Some("io.k8s.api.apps.v1.DaemonSet"),
        "Pod" => Some("io.k8s.api.core.v1.Pod"),
        "ConfigMap" => Some("io.k8s.api.core.v1.ConfigMap"),
        "Namespace" => Some("io.k8s.api.core.v1.Namespace"),
        "Service" => Some("io.k8s.api.core.v1.Service"),
        _ => None,
    };
    if let Some(name) = ours {
        check(definitions, &definitions[name], object, kind, &mut faults);
        for part in ["apiVersion", "metadata"] {
            if object.get(part).is_none() {
                faults.push(format!("{kind}: {part} is missing"));
            }
        }
    } else if let Some(schema) = other_schema(kind) {
        check(definitions, &schema, object, kind, &mut faults);
    } else {
        faults.push(format!("there is no schema of the kind {kind:?}"));
    }
    faults
}

/// The pod that an object makes.
fn pod(object: &Value) -> Option<&Value> {
    match object["kind"].as_str()? {
        "Pod" => Some(&object["spec"]),
        "DaemonSet" => Some(&object["spec"]["template"]["spec"]),
        _ => None,
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    list(&pod["initContainers"]).chain(list(&pod["containers"]))
}

fn names(values: &Value) -> BTreeSet<&str> {
    list(values).filter_map(|it| it["name"].as_str()).collect()
}

#[test]
fn manifests_fit_the_schema() {
    let all = all();
    let mut wrong = Vec::new();
    for (path, object) in &all {
        let faults = faults(object).into_iter();
        wrong.extend(faults.map(|fault| format!("{}: {fault}", path.display())));
    }
    let kinds: BTreeSet<_> = all
        .iter()
        .filter_map(|(_, it)| it["kind"].as_str())
        .collect();
    assert!(kinds.contains("DaemonSet"), "{kinds:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_manifest_that_does_not_fit_is_found() {
    let daemonset = objects(&folder().join("daemonset.yaml"))
        .into_iter()
        .find(|object| object["kind"] == "DaemonSet")
        .expect("there is a DaemonSet");
    assert_eq!(faults(&daemonset), Faults::new());
    for (at, value) in [
        ("/spec/selector", json!(null)),
        ("/spec/template/spec/hostNetwork", json!("true")),
        ("/spec/template/spec/containers/0/name", json!(7)),
        (
            "/spec/template/spec/containers/0/livenessProbe/httpGet/port",
            json!([9797]),
        ),
        (
            "/spec/template/spec/tolerations/0",
            json!({"operators": "Exists"}),
        ),
        (
            "/spec/template/spec/volumes/0",
            json!({"hostPath": {"path": "/run"}}),
        ),
        ("/apiVersion", json!("apps/v1beta1")),
        ("/kind", json!("DemonSet")),
    ] {
        let mut wrong = daemonset.clone();
        *wrong.pointer_mut(at).expect("the field is there") = value;
        assert!(!faults(&wrong).is_empty(), "{at}");
    }
}

/// Names that must be others': volumes of mounts, ports of probes, labels of selectors, files of kustomize.
/// Words that put a secret on a command line, which every user of the machine can read.
fn shows_a_secret(line: &str) -> bool {
    let words = ["--from-literal", "$(openssl rand", "$(head -c"];
    words.iter().any(|word| line.contains(word))
}

#[test]
fn no_recipe_puts_a_key_on_a_command_line() {
    assert!(shows_a_secret(
        "kubectl create secret generic k --from-literal=a.key=$(openssl rand -hex 32)"
    ));
    assert!(shows_a_secret("tool --key=$(openssl rand -hex 32)"));
    assert!(!shows_a_secret(
        "openssl rand -hex 32 | kubectl create secret generic k --from-file=a.key=/dev/stdin"
    ));
    let mut folders = vec![folder(), root().join("docs"), root().join("packaging")];
    let mut texts = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(text) = fs::read_to_string(&path) {
                texts.push((path, text));
            }
        }
    }
    assert!(texts.len() > 20);
    for (path, text) in texts {
        for line in text.lines() {
            assert!(!shows_a_secret(line), "{}: {line}", path.display());
        }
    }
}

#[test]
fn manifests_name_what_is_there() {
    let all = all();
    let mut wrong = Vec::new();
    for (path, object) in &all {
        let mut expect = |is_there: bool, what: String| {
            if !is_there {
                wrong.push(format!("{}: {what}", path.display()));
            }
        };
        for file in list(&object["resources"]).filter_map(Value::as_str) {
            expect(path.with_file_name(file).is_file(), format!("no {file}"));
        }
        let Some(pod) = pod(object) else {
            continue;
        };
        let volumes = names(&pod["volumes"]);
        for container in containers(pod) {
            for mount in names(&container["volumeMounts"]) {
                expect(volumes.contains(mount), format!("no volume {mount}"));
            }
            let ports = names(&container["ports"]);
            for probe in ["livenessProbe", "readinessProbe"] {
                if let Some(port) = container[probe]["httpGet"]["port"].as_str() {
                    expect(ports.contains(port), format!("no port {port}"));
                }
            }
        }
        if object["kind"] == "DaemonSet" {
            let selector = object["spec"]["selector"]["matchLabels"].as_object();
            let labels = &object["spec"]["template"]["metadata"]["labels"];
            for (name, value) in selector.into_iter().flatten() {
                expect(
                    labels[name] == *value,
                    format!("pods have no {name}={value}"),
                );
            }
        }
    }
    let of_kind = |kind: &str| {
        let mut found = all.iter().map(|(_, object)| object);
        found
            .find(|object| object["kind"] == kind)
            .expect("one is there")
    };
    let (daemonset, monitor) = (of_kind("DaemonSet"), of_kind("PodMonitor"));
    let template = &daemonset["spec"]["template"];
    let labels = monitor["spec"]["selector"]["matchLabels"].as_object();
    for (name, value) in labels.into_iter().flatten() {
        assert_eq!(template["metadata"]["labels"][name], *value);
    }
    let ports = names(&template["spec"]["containers"][0]["ports"]);
    for endpoint in list(&monitor["spec"]["podMetricsEndpoints"]) {
        let port = endpoint["port"].as_str().unwrap_or_default();
        assert!(ports.contains(port), "the PodMonitor's port {port}");
    }
    // kustomize gives the image its version by its name.
    let images: BTreeMap<&str, &str> = list(&of_kind("Kustomization")["images"])
        .filter_map(|image| Some((image["name"].as_str()?, image["newTag"].as_str()?)))
        .collect();
    for container in containers(&template["spec"]) {
        let image = container["image"].as_str().unwrap_or_default();
        let (name, tag) = image.split_once(':').unwrap_or((image, ""));
        assert_eq!(images.get(name), Some(&tag), "{image}");
        assert_eq!(tag, env!("CARGO_PKG_VERSION"), "{image}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
